"""Layer normalization over the rows of a matrix: ``out = (x - mean) / sqrt(var + eps) * weight + bias``.

After Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450; mean and var are the row's, var
without Bessel's correction, eps is 1e-5, torch's default. weight and bias have a number for each column.

Size is the number of columns, shape ``(4096, size)`` or with the rows that a sweep names; dtypes float32,
bfloat16, float16, the same for all inputs. Eight flops an element: the addition to the sum, the subtraction
of the mean, its square and the addition to the squares' sum, the factor, weight and bias, and one for the
mean's share. Memory limits it: each element of x is read once and written once as long as a program can hold
its row; weight and bias stay in the caches.

All compute in float32, the providers written here from differences to an element of the row, so that a row of
equal numbers is the bias exactly. The mean itself is rounded to float32: what differs by less than that is
lost. Past 1e16 the squares may overflow. A row with a NaN or an infinity is all NaN. A matrix without columns
is refused by the providers written here. There is no backward pass.
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

EPS = 1e-5
"""Added to the variance; also in cuda.cu and cpp.cpp."""

TOLERANCES = {
    torch.float32: Tolerance(rtol=1e-5, atol=2e-5),
    torch.bfloat16: Tolerance(rtol=8e-3, atol=2e-5),
    torch.float16: Tolerance(rtol=1e-3, atol=2e-5),
}
"""An output is rounded once, by half an eps; the rest is float32's. The absolute part is for where weight
times normalized value and bias cancel: both are a few units, and each is wrong by some float32 eps of
that."""


def shape(size: int) -> Shape:
    """Many rows of ``size`` columns."""
    return (ROWS, size)


def inputs(shape: Shape, dtype: torch.dtype, device: torch.device, seed: int) -> Inputs:
    """The matrix, the weight and the bias, standard normal."""
    return normal_inputs([shape, shape[-1:], shape[-1:]], dtype, device, seed)


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The definition in float64."""
    wide = x.double()
    centered = wide - wide.mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(centered.square().mean(dim=-1, keepdim=True) + EPS)
    return centered * scale * weight.double() + bias.double()


def bytes_(shape: Shape, dtype: torch.dtype) -> int:
    """The matrix read once and written once, weight and bias read once."""
    return read_once_write_once(shape, dtype) + 2 * shape[-1] * dtype.itemsize


def flops(shape: Shape) -> int:
    """Eight an element."""
    return 8 * numel(shape)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """How far an output may be from the reference."""
    return TOLERANCES[dtype]


def torch_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """torch's fused kernel."""
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, EPS)


def check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Raises ValueError for inputs that are no matrix with a weight and a bias for its columns."""
    check_matrix("layernorm", x)
    check_dtype(x)
    check_parameter("layernorm", "weight", weight, x)
    check_parameter("layernorm", "bias", bias, x)


def triton_row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, num_warps: int) -> torch.Tensor:
    """One program a row, held whole."""
    from kernels.layernorm.triton import layernorm_tile

    check(x, weight, bias)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
    return layernorm_tile(x, weight, bias, 1, num_warps)


def triton_tile(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, block_size: int, num_warps: int
) -> torch.Tensor:
    """One program as many rows as ``block_size`` elements hold, and one at least."""
    from kernels.layernorm.triton import layernorm_tile

    check(x, weight, bias)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
    return layernorm_tile(x, weight, bias, block_size, num_warps)


def triton_online(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, block_size: int, num_warps: int
) -> torch.Tensor:
    """One program a row, in steps of ``block_size``; two passes over the row."""
    from kernels.layernorm.triton import layernorm_online

    check(x, weight, bias)
    return layernorm_online(x, weight, bias, block_size, num_warps)


def cuda(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, block_size: int, num_warps: int
) -> torch.Tensor:
    """CUDA C++."""
    check(x, weight, bias)
    out: torch.Tensor = torch.ops.layernorm.cuda(x, weight, bias, block_size, num_warps)
    return out


def cpp(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """C++ on the CPU."""
    check(x, weight, bias)
    out: torch.Tensor = torch.ops.layernorm.cpp(x, weight, bias)
    return out


def quack(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """quack's kernel in the CuTe DSL, without a backward pass."""
    # Not its layernorm_fwd, which takes weight and bias in float32 alone.
    from quack.rmsnorm import _rmsnorm_fwd

    x = x.contiguous()
    out = torch.empty_like(x)
    _rmsnorm_fwd(x, weight.contiguous(), out, bias.contiguous(), eps=EPS, is_layernorm=True)
    return out


def liger(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Liger's Triton kernel; it stores each row's mean and factor too."""
    from liger_kernel.ops.layer_norm import layer_norm_forward

    out: torch.Tensor = layer_norm_forward(x.contiguous(), weight.contiguous(), bias.contiguous(), EPS)[0]
    return out


TILE = ("block_size", "num_warps")

kernel = Kernel(
    name="layernorm",
    size_means="columns",
    shape=shape,
    inputs=inputs,
    reference=reference,
    bytes=bytes_,
    flops=flops,
    tolerance=tolerance,
    largest=1e16,
    providers=(
        Provider("torch", torch_layer_norm),
        Provider("torch_compile", compiled(torch_layer_norm)),
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
