"""What is true of square beside what is true of every kernel."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels.point import Point
from tests.kernels.kernel_cases import Case, cases

SQUARE = kernels.load("square")
CASES = cases(lambda case: case.kernel is SQUARE)
OWN = cases(lambda case: case.kernel is SQUARE and case.is_own)


def test_reference_by_hand() -> None:
    assert SQUARE.reference(torch.tensor([[-1.5, 2.0, 0.0]])).tolist() == [[2.25, 4.0, 0.0]]


@pytest.mark.parametrize("case", CASES)
def test_overflow_is_infinity(case: Case) -> None:
    for dtype, large in ((torch.float32, 1e38), (torch.bfloat16, 1e38), (torch.float16, 65504.0)):
        x = torch.full((3, 37), large, dtype=dtype, device=case.device)
        assert case.run(x).isposinf().all()


@pytest.mark.parametrize("shape", [(), (37,), (3, 5, 7), (4, 0), (0,), (2, 1, 3, 5)], ids=str)
@pytest.mark.parametrize("case", OWN)
def test_any_number_of_dimensions(case: Case, shape: tuple[int, ...]) -> None:
    (x,) = SQUARE.inputs(shape, torch.float32, case.device, 0)
    out = case.run(x)
    assert out.shape == shape
    case.check(out, x)


@pytest.mark.parametrize("case", OWN)
def test_dimensions_in_another_order(case: Case) -> None:
    x = SQUARE.inputs((3, 5, 7), torch.float32, case.device, 0)[0].permute(1, 2, 0)
    case.check(case.run(x), x)


def test_a_row_that_no_block_holds_is_refused() -> None:
    provider = SQUARE.provider("triton_row")
    sentence = "one block holds a row: 65537 columns > 65536"
    point = Point("square", "triton_row", 65537, "float32", num_warps=32)
    assert provider.unsupported(point, (65537, 65537)) == sentence
    assert provider.unsupported(point, (65536, 65536)) is None
    with pytest.raises(ValueError, match=sentence):
        provider.call(torch.empty(1, 65537, device="meta"), num_warps=4)
