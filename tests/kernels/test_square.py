"""What is true of square beside what is true of every kernel."""

from __future__ import annotations

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.tensors import normal
from kernels.elementwise import Matrix
from kernels.rows import Row
from kernels.square.reference import reference
from tests.kernels.kernel_cases import MatrixCase, matrix_cases

SQUARE = loading.load("square")
CASES = matrix_cases(lambda case: case.loaded is SQUARE)
OWN = matrix_cases(lambda case: case.loaded is SQUARE and case.is_own)


def test_reference_by_hand() -> None:
    assert reference(torch.tensor([[-1.5, 2.0, 0.0]])).tolist() == [[2.25, 4.0, 0.0]]


@pytest.mark.parametrize("case", CASES)
def test_overflow_is_infinity(case: MatrixCase) -> None:
    for dtype, large in ((torch.float32, 1e38), (torch.bfloat16, 1e38), (torch.float16, 65504.0)):
        x = torch.full((3, 37), large, dtype=dtype, device=case.device)
        assert case.run(x).isposinf().all()


@pytest.mark.parametrize("shape", [(), (37,), (3, 5, 7), (4, 0), (0,), (2, 1, 3, 5)], ids=str)
@pytest.mark.parametrize("case", OWN)
def test_any_number_of_dimensions(case: MatrixCase, shape: tuple[int, ...]) -> None:
    (x,) = normal([shape], "float32", case.device, 0)
    out = case.run(x)
    assert out.shape == shape
    case.compare(out, x)


@pytest.mark.parametrize("case", OWN)
def test_dimensions_in_another_order(case: MatrixCase) -> None:
    x = normal([(3, 5, 7)], "float32", case.device, 0)[0].permute(1, 2, 0)
    case.compare(case.run(x), x)


def test_a_row_that_no_block_holds_is_refused() -> None:
    provider = SQUARE.kernel.provider("triton_row")
    sentence = "one block holds a row: 65537 columns > 65536"
    assert provider.fits(Matrix(rows=65537, columns=65537), Row(num_warps=32), None) == sentence
    assert provider.fits(Matrix(rows=65536, columns=65536), Row(num_warps=32), None) is None
    with pytest.raises(ValueError, match=sentence):
        SQUARE.entry(provider)(torch.empty(1, 65537, device="meta"), num_warps=4)
