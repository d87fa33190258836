"""Square of every element: ``out = x * x``.

The smallest kernel that is still worth measuring, from the first lecture of GPU MODE: torch's own
ways to say it, what torch.compile makes of them, and the same loop in Triton, CUDA C++ and C++.

Size is the side of a square matrix, shape ``(size, size)``; dtypes float32, bfloat16, float16. One
flop an element, the multiplication. An element costs one read, one write and one multiplication, so
memory limits it everywhere: the least time is bytes over bandwidth, and a provider is only as good
as its loads and stores.

The square of a number above the dtype's square root overflows to infinity, as torch's does.
"""

from __future__ import annotations

import torch

from kernels.contract import (
    Kernel,
    Provider,
    Tolerance,
    check_dtype,
    compiled,
    normal_input,
    numel,
    read_once_write_once,
    refuse_wide_rows,
    row_too_wide,
)
from kernels.point import Shape

TOLERANCES = {
    dtype: Tolerance(rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny)
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
}
"""A product is rounded once, by half an eps at most. A whole eps leaves no room for a second rounding in a
narrower dtype and lets Triton's interpreter pass, which cuts float32 to bfloat16 without rounding. The
smallest normal number is for those who flush subnormals to zero."""


def shape(size: int) -> Shape:
    """A square matrix."""
    return (size, size)


def reference(x: torch.Tensor) -> torch.Tensor:
    """The square in float64, which holds the product of two float32 exactly."""
    wide = x.double()
    return wide * wide


def tolerance(dtype: torch.dtype) -> Tolerance:
    """How far a square may be from the reference."""
    return TOLERANCES[dtype]


def torch_mul(x: torch.Tensor) -> torch.Tensor:
    """The product as Python writes it."""
    return x * x


def torch_pow(x: torch.Tensor) -> torch.Tensor:
    """The power as Python writes it; torch has a fast path for the exponent 2."""
    return x**2


def triton_row(x: torch.Tensor, num_warps: int) -> torch.Tensor:
    """One program a row."""
    from kernels.square.triton import square_rows

    if x.dim() > 0 and (reason := row_too_wide(x.shape[-1])):
        raise ValueError(reason)
    return square_rows(x, num_warps)


def triton_flat(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """One program a block of the flat tensor."""
    from kernels.square.triton import square_flat

    return square_flat(x, block_size, num_warps)


def cuda_naive(x: torch.Tensor) -> torch.Tensor:
    """One thread an element, in tiles of 16 x 16 threads."""
    check_dtype(x)
    # Its tiles need a matrix; other shapes are seen as one with the same last dimension.
    columns = x.shape[-1] if x.dim() > 0 else 1
    matrix = x.reshape(x.numel() // columns if columns else 0, columns)
    out: torch.Tensor = torch.ops.square.cuda_naive(matrix)
    return out.reshape(x.shape)


def cuda(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Vectorized CUDA C++."""
    check_dtype(x)
    out: torch.Tensor = torch.ops.square.cuda(x, block_size, num_warps)
    return out


def cpp(x: torch.Tensor) -> torch.Tensor:
    """C++ on the CPU."""
    check_dtype(x)
    out: torch.Tensor = torch.ops.square.cpp(x)
    return out


kernel = Kernel(
    name="square",
    size_means="rows and columns",
    shape=shape,
    inputs=normal_input,
    reference=reference,
    bytes=read_once_write_once,
    flops=numel,
    tolerance=tolerance,
    providers=(
        Provider("torch_square", torch.square),
        Provider("torch_mul", torch_mul),
        Provider("torch_pow", torch_pow),
        Provider("torch_compile", compiled(torch_mul)),
        Provider(
            "triton_row",
            triton_row,
            axes=("num_warps",),
            source="triton.py",
            devices=("cuda",),
            refuse=refuse_wide_rows,
        ),
        Provider(
            "triton_flat",
            triton_flat,
            axes=("block_size", "num_warps"),
            source="triton.py",
            devices=("cuda",),
        ),
        Provider("cuda_naive", cuda_naive, source="cuda.cu", devices=("cuda",)),
        Provider("cuda", cuda, axes=("block_size", "num_warps"), source="cuda.cu", devices=("cuda",)),
        Provider("cpp", cpp, source="cpp.cpp", devices=("cpu",)),
    ),
    baseline="torch_square",
)
