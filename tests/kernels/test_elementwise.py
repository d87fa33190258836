"""Square and gelu beside the tests for every kernel."""

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.tensors import normal
from kernels.elementwise import Matrix
from kernels.gelu.reference import reference as gelu
from kernels.rows import Row
from kernels.square.reference import reference as square
from tests.kernels.kernel_cases import MatrixCase, matrix_cases

SQUARE, GELU = loading.load("square"), loading.load("gelu")
OWN = matrix_cases(lambda case: case.loaded in (SQUARE, GELU) and case.is_own)


def test_references_by_hand() -> None:
    """0.8411919906082768 = 0.5 * (1 + tanh(sqrt(2 / pi) * 1.044715)); and gelu(x) - gelu(-x) = x."""
    assert square(torch.tensor([[-1.5, 2.0, 0.0]])).tolist() == [[2.25, 4.0, 0.0]]
    out = gelu(torch.tensor([[1.0, -1.0, 0.0, 40.0, -40.0]]))
    one = 0.8411919906082768
    expected = torch.tensor([[one, one - 1, 0.0, 40.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(out, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("case", matrix_cases(lambda case: case.loaded is GELU and case.is_own))
def test_gelus_left_tail_where_one_plus_tanh_cancels(case: MatrixCase) -> None:
    x = torch.linspace(-10, 0, 1001, device=case.device)[None]
    case.compare(case.run(x), x)


@pytest.mark.parametrize("shape", [(), (37,), (3, 5, 7), (4, 0), (0,), (2, 1, 3, 5)], ids=str)
@pytest.mark.parametrize("case", OWN)
def test_any_number_and_order_of_dimensions(case: MatrixCase, shape: tuple[int, ...]) -> None:
    (x,) = normal([shape], "float32", case.device, 0)
    for one in (x, x.permute(tuple(reversed(range(x.dim()))))):
        out = case.run(one)
        assert out.shape == one.shape
        case.compare(out, one)


def test_a_row_of_square_that_no_block_holds_is_refused() -> None:
    provider = SQUARE.kernel.provider("triton_row")
    sentence = "one block holds a row: 65537 columns > 65536"
    assert provider.fits(Matrix(rows=65537, columns=65537), Row(num_warps=32), None) == sentence
    assert provider.fits(Matrix(rows=65536, columns=65536), Row(num_warps=32), None) is None
    with pytest.raises(ValueError, match=sentence):
        SQUARE.entry(provider)(torch.empty(1, 65537, device="meta"), num_warps=4)
