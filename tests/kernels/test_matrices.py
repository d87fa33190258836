"""What is true of every kernel that makes a matrix of a matrix, whatever it computes."""

import math

import pytest
import torch

from tests.kernels.kernel_cases import FLOATS, ON_GPU, MatrixCase, extremes, matrix_cases


@pytest.mark.parametrize("rows", [1, 37, 1823])
@pytest.mark.parametrize("case", matrix_cases(lambda case: ON_GPU or not case.provider.interpreted))
def test_any_number_of_rows(case: MatrixCase, rows: int) -> None:
    inputs = case.of_shape((rows, 781), torch.bfloat16)
    case.compare(case.run(*inputs), *inputs)


@pytest.mark.parametrize(
    ("block_size", "num_warps"), [(32, 1), (1024, 8), *(((32, 8), (1024, 1)) if ON_GPU else ())]
)
@pytest.mark.parametrize("case", matrix_cases(lambda case: bool(case.provider.variables())))
def test_any_launch(case: MatrixCase, block_size: int, num_warps: int) -> None:
    inputs = case.of_size(261, torch.float32)
    case.compare(case.run(*inputs, block_size=block_size, num_warps=num_warps), *inputs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", matrix_cases())
def test_one_extreme_value_among_normal_ones(case: MatrixCase, dtype: torch.dtype) -> None:
    values = extremes(case.kernel, dtype)
    x, *parameters = case.of_shape((len(values), 261), dtype)
    # In the second of the steps that a block of 128 takes, and not in its first lane.
    x[:, 200] = torch.tensor(values)
    case.compare(case.run(x, *parameters), x, *parameters)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", matrix_cases())
def test_rows_of_the_largest_numbers(case: MatrixCase, dtype: torch.dtype) -> None:
    """Whose sums, squared, are larger than any number."""
    x, *parameters = case.of_shape((3, 2500), dtype)
    x = x.sign() * min(torch.finfo(dtype).max, case.kernel.largest)
    case.compare(case.run(x, *parameters), x, *parameters)


@pytest.mark.parametrize("dtype", FLOATS)
# torch's norm loses equal large numbers to the rounding of their mean; the norms written here don't.
@pytest.mark.parametrize("case", matrix_cases(lambda case: case.is_own or case.kernel.largest == math.inf))
def test_rows_of_one_value(case: MatrixCase, dtype: torch.dtype) -> None:
    values = torch.tensor(extremes(case.kernel, dtype), dtype=dtype, device=case.device)
    inputs = case.with_parameters(values[:, None].repeat(1, 261))
    case.compare(case.run(*inputs), *inputs)


@pytest.mark.parametrize("case", matrix_cases())
def test_no_rows(case: MatrixCase) -> None:
    out = case.run(*case.with_parameters(torch.empty(0, 5, device=case.device)))
    assert out.shape == (0, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", matrix_cases(lambda case: case.is_own))
def test_half_precision_is_rounded_once(case: MatrixCase, dtype: torch.dtype) -> None:
    """Tighter than the tolerance, which has room for a provider that rounds after every operation.

    One eps, not half, because Triton's interpreter cuts float32 to bfloat16 without rounding.
    """
    inputs = case.of_size(261, dtype)
    exact = case.exact(*inputs)
    excess = (case.run(*inputs).double() - exact).abs() - torch.finfo(dtype).eps * exact.abs()
    assert excess.max() <= 1e-6
