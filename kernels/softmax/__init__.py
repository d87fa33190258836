"""Softmax over the rows of a matrix: ``out = exp(x - max(x)) / sum(exp(x - max(x)))``, a row at a time.

Taking the row's maximum off first changes nothing in exact arithmetic and keeps exp from overflowing.
``triton_online`` finds the maximum and the sum in one pass, after Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018, arXiv:1805.02867.

Size is the number of columns, shape ``(4096, size)`` or with the rows that a sweep names; dtypes float32,
bfloat16, float16. Five flops an element: the comparison for the maximum, the subtraction, exp counted as
one, the addition to the sum, the division. Memory limits it: each element is read once and written once as
long as a program can hold its row; one that can't reads the row twice, and then the second read comes from
L2 or costs half as much again. Unfused, five kernels read and write the whole matrix.

A row with a NaN or a +inf is all NaN, and so is a row of nothing but -inf; beside finite numbers, -inf
has weight 0. A matrix without columns is refused by the providers written here; torch returns it.
"""

from __future__ import annotations

import torch

from kernels.contract import (
    Kernel,
    Provider,
    Tolerance,
    check_dtype,
    check_matrix,
    compiled,
    installed,
    normal_input,
    numel,
    read_once_write_once,
    refuse_full_threads,
    refuse_narrow_tiles,
    refuse_wide_rows,
    row_too_wide,
)
from kernels.point import Shape

ROWS = 4096
"""Enough rows to fill every GPU several times over at a program a row."""

TOLERANCES = {
    torch.float32: Tolerance(rtol=2e-5, atol=2e-38),
    torch.bfloat16: Tolerance(rtol=5e-2, atol=2e-38),
    torch.float16: Tolerance(rtol=6e-3, atol=2e-7),
}
"""Relative, since an output is about 1 / columns and an absolute error that suits a narrow row would pass
zeros in a wide one. Set by the unfused form on normal inputs: ``x - max`` is -11 at most and rounded by
up to 2**-5 in bfloat16 and 2**-8 in float16, which exp turns into that relative error; exp, sum and
quotient are rounded once more each. In float32 it is exp's and the long sum's own error. The absolute
part is the smallest numbers: flushed ones in float32 and bfloat16, three subnormal steps in float16."""


def shape(size: int) -> Shape:
    """Many rows of ``size`` columns."""
    return (ROWS, size)


def reference(x: torch.Tensor) -> torch.Tensor:
    """The definition in float64."""
    return manual(x.double())


def flops(shape: Shape) -> int:
    """Five an element."""
    return 5 * numel(shape)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """How far an output may be from the reference."""
    return TOLERANCES[dtype]


def manual(x: torch.Tensor) -> torch.Tensor:
    """The definition as it is written, a kernel an operation."""
    weight = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return weight / weight.sum(dim=-1, keepdim=True)


def torch_softmax(x: torch.Tensor) -> torch.Tensor:
    """torch's fused kernel."""
    return torch.softmax(x, dim=-1)


def triton_row(x: torch.Tensor, num_warps: int) -> torch.Tensor:
    """One program a row, held whole."""
    from kernels.softmax.triton import softmax_row

    check_matrix("softmax", x)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
    return softmax_row(x, num_warps)


def triton_tile(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """One program as many rows as ``block_size`` elements hold, and one at least."""
    from kernels.softmax.triton import softmax_tile

    check_matrix("softmax", x)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
    return softmax_tile(x, block_size, num_warps)


def triton_online(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """One program a row, in steps of ``block_size``; two passes over the row."""
    from kernels.softmax.triton import softmax_online

    check_matrix("softmax", x)
    return softmax_online(x, block_size, num_warps)


def cuda(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """CUDA C++."""
    check_matrix("softmax", x)
    check_dtype(x)
    out: torch.Tensor = torch.ops.softmax.cuda(x, block_size, num_warps)
    return out


def cpp(x: torch.Tensor) -> torch.Tensor:
    """C++ on the CPU."""
    check_matrix("softmax", x)
    check_dtype(x)
    out: torch.Tensor = torch.ops.softmax.cpp(x)
    return out


def quack(x: torch.Tensor) -> torch.Tensor:
    """quack's kernel in the CuTe DSL, without a backward pass."""
    from quack.softmax import softmax_fwd

    out: torch.Tensor = softmax_fwd(x.contiguous())
    return out


def liger(x: torch.Tensor) -> torch.Tensor:
    """Liger's Triton kernel."""
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    out: torch.Tensor = LigerSoftmaxFunction.apply(x)
    return out


kernel = Kernel(
    name="softmax",
    size_means="columns",
    shape=shape,
    inputs=normal_input,
    reference=reference,
    bytes=read_once_write_once,
    flops=flops,
    tolerance=tolerance,
    providers=(
        Provider("manual", manual),
        Provider("torch", torch_softmax),
        Provider("torch_compile", compiled(manual)),
        Provider(
            "triton_row",
            triton_row,
            axes=("num_warps",),
            source="triton.py",
            devices=("cuda",),
            refuse=refuse_wide_rows,
        ),
        Provider(
            "triton_tile",
            triton_tile,
            axes=("block_size", "num_warps"),
            source="triton.py",
            devices=("cuda",),
            refuse=refuse_narrow_tiles,
        ),
        Provider(
            "triton_online",
            triton_online,
            axes=("block_size", "num_warps"),
            source="triton.py",
            devices=("cuda",),
            refuse=refuse_full_threads,
        ),
        Provider("cuda", cuda, axes=("block_size", "num_warps"), source="cuda.cu", devices=("cuda",)),
        Provider("cpp", cpp, source="cpp.cpp", devices=("cpu",)),
        *installed(
            Provider("quack", quack, devices=("cuda",), package="quack-kernels"),
            Provider("liger", liger, devices=("cuda",), refuse=refuse_wide_rows, package="liger-kernel"),
        ),
    ),
)
