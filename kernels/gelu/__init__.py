"""Gaussian error linear unit in its tanh form.

``out = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``, the approximation in section 2
of Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)", 2016, arXiv:1606.08415.

Size is the side of a square matrix, shape ``(size, size)``; dtypes float32, bfloat16, float16. Nine
flops an element: two multiplications for the cube, one by 0.044715, the sum with x, one by
sqrt(2 / pi), tanh counted as one, the sum with 1, half of x, and the product. Fused, an element costs
one read and one write, and memory limits it; unfused, every operation is a kernel that reads and
writes the whole tensor, and that traffic is what fusing saves.

The formula gives NaN at -inf, which is ``-inf * 0``, though its limit there is 0; torch, the reference
and every provider give NaN too. At +inf it gives +inf.
"""

from __future__ import annotations

import math

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
)
from kernels.point import Shape

TOLERANCES = {
    torch.float32: Tolerance(rtol=1e-5, atol=1e-6),
    torch.bfloat16: Tolerance(rtol=1.6e-2, atol=8e-3),
    torch.float16: Tolerance(rtol=2e-3, atol=1e-3),
}
"""Set by the unfused form, which rounds to the dtype after each of its operations: 2 eps of the output and
1 eps beside it, twice what four million normal inputs showed. The second is for the left of zero, where tanh
nears -1 and ``1 + tanh`` cancels: what remains is as wrong as tanh was. The float32 row leaves room for a
tanh made of a fast exp."""


def shape(size: int) -> Shape:
    """A square matrix."""
    return (size, size)


def manual(x: torch.Tensor) -> torch.Tensor:
    """The formula as it is written, a kernel an operation."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def reference(x: torch.Tensor) -> torch.Tensor:
    """The formula in float64, where even the cube of float32's largest number is finite."""
    return manual(x.double())


def flops(shape: Shape) -> int:
    """Nine an element."""
    return 9 * numel(shape)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """How far an output may be from the reference."""
    return TOLERANCES[dtype]


def torch_gelu(x: torch.Tensor) -> torch.Tensor:
    """torch's fused kernel."""
    return torch.nn.functional.gelu(x, approximate="tanh")


def triton_flat(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """One program a block of the flat tensor."""
    from kernels.gelu.triton import gelu_flat

    return gelu_flat(x, block_size, num_warps)


def cuda(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Vectorized CUDA C++."""
    check_dtype(x)
    out: torch.Tensor = torch.ops.gelu.cuda(x, block_size, num_warps)
    return out


def cpp(x: torch.Tensor) -> torch.Tensor:
    """C++ on the CPU."""
    check_dtype(x)
    out: torch.Tensor = torch.ops.gelu.cpp(x)
    return out


kernel = Kernel(
    name="gelu",
    size_means="rows and columns",
    shape=shape,
    inputs=normal_input,
    reference=reference,
    bytes=read_once_write_once,
    flops=flops,
    tolerance=tolerance,
    providers=(
        Provider("manual", manual),
        Provider("torch", torch_gelu),
        Provider("torch_compile", compiled(manual)),
        Provider(
            "triton", triton_flat, axes=("block_size", "num_warps"), source="triton.py", devices=("cuda",)
        ),
        Provider("cuda", cuda, axes=("block_size", "num_warps"), source="cuda.cu", devices=("cuda",)),
        Provider("cpp", cpp, source="cpp.cpp", devices=("cpu",)),
    ),
)
