"""Every provider that this host can run gives the float64 reference within its kernel's tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from kernels.contract import Kernel
from tests.kernels.kernel_cases import FLOATS, HERE, ON_GPU, Case, cases

# 1 and 37: less than a block and a warp. 128: a block exactly. 781 and 1823: several blocks and a rest.
SIZES = (1, 37, 128, 781, 1823, *((4096, 12671, 50257) if ON_GPU else ()))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("case", "size"),
    [
        pytest.param(case, size, id=f"{case.kernel.name}-{case.provider.name}-{size}")
        for case in HERE
        for size in SIZES
        if size == 37 or not case.compiles_slowly
    ],
)
def test_agrees_with_the_reference(case: Case, size: int, dtype: torch.dtype) -> None:
    inputs = case.inputs(size, dtype)
    before = [tensor.clone() for tensor in inputs]
    out = case.run(*inputs)
    case.check(out, *inputs)
    assert all(map(torch.equal, inputs, before)), "an input was changed"


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


def every_second_column(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, dim=1)[:, ::2]


def every_second_row(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, dim=0)[::2]


def padded_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (3, 8), value=torch.nan)[:, 3:-8]


def unaligned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.new_full((1,), torch.nan), x.flatten()])[1:].view(x.shape)


def every_second_element(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.repeat_interleave(2)[::2]


def one_row_repeated(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand(x.shape)


@pytest.mark.parametrize(
    "layout",
    [transposed, every_second_column, every_second_row, padded_rows, unaligned, one_row_repeated],
    ids=lambda layout: layout.__name__,
)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", cases())
def test_any_layout(case: Case, dtype: torch.dtype, layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x, *parameters = case.inputs(261, dtype)
    inputs = layout(x), *map(every_second_element, parameters)
    case.check(case.run(*inputs), *inputs)


@pytest.mark.parametrize("rows", [1, 37, 1823])
@pytest.mark.parametrize("case", cases(lambda case: ON_GPU or not case.provider.is_triton))
def test_any_number_of_rows(case: Case, rows: int) -> None:
    inputs = case.kernel.inputs((rows, 781), torch.bfloat16, case.device, 0)
    case.check(case.run(*inputs), *inputs)


@pytest.mark.parametrize("num_warps", [1, 8])
@pytest.mark.parametrize("block_size", [32, 1024])
@pytest.mark.parametrize("case", cases(lambda case: bool(case.provider.axes)))
def test_any_launch(case: Case, block_size: int, num_warps: int) -> None:
    inputs = case.inputs(261, torch.float32)
    case.check(case.run(*inputs, block_size=block_size, num_warps=num_warps), *inputs)


def extremes(kernel: Kernel, dtype: torch.dtype) -> list[float]:
    info = torch.finfo(dtype)
    largest = min(info.max, kernel.largest)
    return [
        *(torch.nan, torch.inf, -torch.inf, 0.0, -0.0),
        *(largest, -largest, info.tiny, info.smallest_normal / 4, info.eps, 1e4, -1e4),
    ]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", cases(slow=True))
def test_one_extreme_value_among_normal_ones(case: Case, dtype: torch.dtype) -> None:
    values = extremes(case.kernel, dtype)
    x, *parameters = case.kernel.inputs((len(values), 261), dtype, case.device, 0)
    # In the second of the steps that a block of 128 takes, and not in its first lane.
    x[:, 200] = torch.tensor(values)
    case.check(case.run(x, *parameters), x, *parameters)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", cases(slow=True))
def test_rows_of_the_largest_numbers(case: Case, dtype: torch.dtype) -> None:
    """Whose sums, squared, are larger than any number."""
    x, *parameters = case.kernel.inputs((3, 2500), dtype, case.device, 0)
    x = x.sign() * min(torch.finfo(dtype).max, case.kernel.largest)
    case.check(case.run(x, *parameters), x, *parameters)


@pytest.mark.parametrize("dtype", FLOATS)
# torch's norm loses equal large numbers to the rounding of their mean; the norms written here don't.
@pytest.mark.parametrize(
    "case", cases(lambda case: case.is_own or case.kernel.largest == math.inf, slow=True)
)
def test_rows_of_one_value(case: Case, dtype: torch.dtype) -> None:
    values = torch.tensor(extremes(case.kernel, dtype), dtype=dtype, device=case.device)
    inputs = case.with_parameters(values[:, None].repeat(1, 261))
    case.check(case.run(*inputs), *inputs)


@pytest.mark.parametrize("case", cases(lambda case: case.provider.is_triton))
def test_writes_all_of_its_output_and_nothing_beside_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbours of the output are marked, and so is the output before the call."""
    buffers: list[torch.Tensor] = []
    margin, mark = 4096, -12345.0

    def marked(x: torch.Tensor, **options: object) -> torch.Tensor:
        buffers.append(torch.full((x.numel() + 2 * margin,), mark, dtype=x.dtype, device=x.device))
        return buffers[-1][margin:-margin].view(x.shape)

    monkeypatch.setattr(torch, "empty_like", marked)
    inputs = case.kernel.inputs((3, 261), torch.float32, case.device, 0)
    out = case.run(*inputs)
    monkeypatch.undo()
    case.check(out, *inputs)
    (buffer,) = buffers
    assert (buffer[:margin] == mark).all()
    assert (buffer[-margin:] == mark).all()


@pytest.mark.parametrize("case", cases())
def test_no_rows(case: Case) -> None:
    out = case.run(*case.with_parameters(torch.empty(0, 5, device=case.device)))
    assert out.shape == (0, 5)


@pytest.mark.parametrize("case", cases(lambda case: case.is_own))
def test_refuses_a_dtype_that_it_would_truncate(case: Case) -> None:
    inputs = case.inputs(37, torch.float32)
    with pytest.raises(ValueError, match="float16, got float64"):
        case.run(*(tensor.double() for tensor in inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", cases(lambda case: case.is_own))
def test_half_precision_is_rounded_once(case: Case, dtype: torch.dtype) -> None:
    """Tighter than the tolerance, which has room for a provider that rounds after every operation.

    One eps, not half, because Triton's interpreter cuts float32 to bfloat16 without rounding.
    """
    inputs = case.inputs(261, dtype)
    exact = case.kernel.reference(*inputs)
    excess = (case.run(*inputs).double() - exact).abs() - torch.finfo(dtype).eps * exact.abs()
    assert excess.max() <= 1e-6
