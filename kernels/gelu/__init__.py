"""Gaussian error linear unit in its tanh form.

``out = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``, the approximation in section 2
of Hendrycks and Gimpel, "Gaussian Error Linear Units (GELUs)", 2016, arXiv:1606.08415.

An element costs nine flops: two multiplications for the cube, one by 0.044715, the sum with x, one by
sqrt(2 / pi), tanh counted as one, the sum with 1, half of x, and the product. A fused kernel reads and writes
each element once, and memory limits it. Unfused, every operation is a kernel that reads and writes the whole
tensor; fusing saves that traffic.

The formula gives NaN at -inf, which is ``-inf * 0``, though its limit there is 0; torch, the reference
and every provider give NaN too. At +inf it gives +inf.
"""

from __future__ import annotations

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of

from ..elementwise import Matrix, few_rows
from ..rows import Tile, elements_a_thread

TOLERANCES = {
    "float32": Tolerance(rtol=1e-5, atol=1e-6),
    "bfloat16": Tolerance(rtol=1.6e-2, atol=8e-3),
    "float16": Tolerance(rtol=2e-3, atol=1e-3),
}
"""The unfused form sets the limits, because it rounds to the dtype after each operation: 2 eps relative to
the output and 1 eps absolute, twice the error of four million normal inputs. The absolute part is for
negative x, where tanh nears -1 and ``1 + tanh`` cancels: the difference has tanh's absolute error. The
float32 limit allows a tanh made of a fast exp."""


def work(problem: Matrix) -> Work:
    """Return the least work: the matrix read and written once; nine operations per element."""
    return Work(bytes_of(problem.dtype, problem.shape, problem.shape), {"float32": 9 * problem.elements})


def tolerance(problem: Matrix) -> Tolerance:
    """Return how far an output may be from the reference."""
    return TOLERANCES[problem.dtype]


kernel = Kernel(
    problem=Matrix,
    size=("rows", "columns"),
    work=work,
    tolerance=tolerance,
    interpreted=few_rows,
    any_order=True,
    providers=(
        Provider("manual", "torch.py:manual"),
        Provider("torch", "torch.py:gelu"),
        Provider("torch_compile", "torch.py:manual", compiled=True),
        Provider("triton", "triton.py:gelu_flat", Tile, compile_weight=elements_a_thread),
        Provider("cuda", "cuda.cu:cuda", Tile),
        Provider("cpp", "cpp.cpp:cpp"),
    ),
)
