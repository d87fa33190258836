"""Root mean square normalization over the rows of a matrix: ``out = x / sqrt(mean(x**2) + eps) * weight``.

After Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467; the mean is the
row's, eps is 1e-6, as language models have it. weight has a number for each column.

Size is the number of columns, shape ``(4096, size)`` or with the rows that a sweep names; dtypes float32,
bfloat16, float16, the same for both inputs. Four flops an element: the square and its addition to the sum,
the factor and the weight. Memory limits it: each element of x is read once and written once as long as a
program can hold its row; the weight stays in the caches.

All compute in float32; past 1e16 the squares may overflow. A row with a NaN is all NaN; beside an infinity,
which becomes NaN, finite numbers become 0. A matrix without columns is refused by the providers written here.
There is no backward pass.
"""

from __future__ import annotations

import torch

from kernels.contract import (
    Inputs,
    Kernel,
    Provider,
    Tolerance,
    check_dtype,
    check_matrix,
    check_parameter,
    compiled,
    installed,
    normal_inputs,
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

EPS = 1e-6
"""Added to the mean square; also in cuda.cu and cpp.cpp."""

TOLERANCES = {
    torch.float32: Tolerance(rtol=1e-5, atol=1e-34),
    torch.bfloat16: Tolerance(rtol=1.6e-2, atol=1e-34),
    torch.float16: Tolerance(rtol=2e-3, atol=2e-7),
}
"""torch rounds the normalized value to the dtype before it applies the weight, and the product again: half an
eps each, twice that here. The absolute part is for the smallest numbers: inputs below the smallest normal one
may count as zero in float32 and bfloat16, and 1 / sqrt(eps) and a weight of some units make up to 1e-34 of
them; in float16 it is three subnormal steps."""


def shape(size: int) -> Shape:
    """Many rows of ``size`` columns."""
    return (ROWS, size)


def inputs(shape: Shape, dtype: torch.dtype, device: torch.device, seed: int) -> Inputs:
    """The matrix and the weight, standard normal."""
    return normal_inputs([shape, shape[-1:]], dtype, device, seed)


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The definition in float64."""
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPS) * weight.double()


def bytes_(shape: Shape, dtype: torch.dtype) -> int:
    """The matrix read once and written once, the weight read once."""
    return read_once_write_once(shape, dtype) + shape[-1] * dtype.itemsize


def flops(shape: Shape) -> int:
    """Four an element."""
    return 4 * numel(shape)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """How far an output may be from the reference."""
    return TOLERANCES[dtype]


def torch_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """torch's fused kernel."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)


def check(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raises ValueError for inputs that are no matrix with a weight for its columns."""
    check_matrix("rmsnorm", x)
    check_dtype(x)
    check_parameter("rmsnorm", "weight", weight, x)


def triton_row(x: torch.Tensor, weight: torch.Tensor, num_warps: int) -> torch.Tensor:
    """One program a row, held whole."""
    from kernels.rmsnorm.triton import rmsnorm_tile

    check(x, weight)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
    return rmsnorm_tile(x, weight, 1, num_warps)


def triton_tile(x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """One program as many rows as ``block_size`` elements hold, and one at least."""
    from kernels.rmsnorm.triton import rmsnorm_tile

    check(x, weight)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
    return rmsnorm_tile(x, weight, block_size, num_warps)


def triton_online(x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """One program a row, in steps of ``block_size``; two passes over the row."""
    from kernels.rmsnorm.triton import rmsnorm_online

    check(x, weight)
    return rmsnorm_online(x, weight, block_size, num_warps)


def cuda(x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """CUDA C++."""
    check(x, weight)
    out: torch.Tensor = torch.ops.rmsnorm.cuda(x, weight, block_size, num_warps)
    return out


def cpp(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """C++ on the CPU."""
    check(x, weight)
    out: torch.Tensor = torch.ops.rmsnorm.cpp(x, weight)
    return out


def quack(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """quack's kernel in the CuTe DSL, without a backward pass."""
    from quack.rmsnorm import rmsnorm_fwd

    out: torch.Tensor = rmsnorm_fwd(x.contiguous(), weight.contiguous(), eps=EPS)[0]
    return out


def liger(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Liger's Triton kernel, rounding as Llama does; it stores each row's factor too."""
    from liger_kernel.ops.rms_norm import rms_norm_forward

    out: torch.Tensor = rms_norm_forward(x.contiguous(), weight.contiguous(), EPS, 0.0, "llama", None)[0]
    return out


TILE = ("block_size", "num_warps")

kernel = Kernel(
    name="rmsnorm",
    size_means="columns",
    shape=shape,
    inputs=inputs,
    reference=reference,
    bytes=bytes_,
    flops=flops,
    tolerance=tolerance,
    largest=1e16,
    providers=(
        Provider("torch", torch_rms_norm),
        Provider("torch_compile", compiled(torch_rms_norm)),
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
            axes=TILE,
            source="triton.py",
            devices=("cuda",),
            refuse=refuse_narrow_tiles,
        ),
        Provider(
            "triton_online",
            triton_online,
            axes=TILE,
            source="triton.py",
            devices=("cuda",),
            refuse=refuse_full_threads,
        ),
        Provider("cuda", cuda, axes=TILE, source="cuda.cu", devices=("cuda",)),
        Provider("cpp", cpp, source="cpp.cpp", devices=("cpu",)),
        *installed(
            Provider("quack", quack, devices=("cuda",), package="quack-kernels"),
            Provider("liger", liger, devices=("cuda",), refuse=refuse_wide_rows, package="liger-kernel"),
        ),
    ),
)
