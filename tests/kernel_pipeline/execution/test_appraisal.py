"""How far right outputs are from the reference, in units in the last place."""

import math

import pytest
import torch

from kernel_pipeline.execution.verifier_process import ulps

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_next_number_of_a_dtype_is_one_away(dtype: torch.dtype) -> None:
    reference = torch.tensor([1.0, 1.5, 3.0, -5.0, 1e-3, 250.0], dtype=dtype)
    bits = reference.view({2: torch.int16, 4: torch.int32}[dtype.itemsize])
    for steps in (0, 1, 3):
        out = (bits + steps).view(dtype)
        assert ulps(out, reference.double()).tolist() == [float(steps)] * 6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_is_half_a_unit_at_most(dtype: torch.dtype) -> None:
    reference = torch.randn(10000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = ulps(reference.to(dtype), reference)
    assert 0.2 < found.median().item() < 0.3
    assert 0.49 < found.max().item() <= 0.5


def test_below_the_smallest_normal_number_they_lie_as_far_apart_as_there() -> None:
    tiny = torch.finfo(torch.float32).tiny
    out = torch.tensor([0.0, tiny / 2, 2**-149])
    assert ulps(out, torch.tensor([2**-149, tiny / 2 + 2**-148, 0.0]).double()).tolist() == [1.0, 2.0, 1.0]


def test_what_is_no_number_has_no_distance() -> None:
    out = torch.tensor([math.inf, math.nan, 65504.0, 1.0], dtype=torch.float16)
    reference = torch.tensor([math.inf, math.nan, 70000.0, -math.inf], dtype=torch.float64)
    assert ulps(out, reference).tolist() == [0.0] * 4
