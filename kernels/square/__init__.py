"""Square of every element: ``out = x * x``.

This is the smallest kernel that is worth measuring, from the first lecture of GPU MODE: torch's own ways to
write it, torch.compile's code for them, and the same loop in Triton, CUDA C++, C++ and Numba.

An element costs one flop, the multiplication, one read and one write. So memory limits it everywhere: the
least time is bytes over bandwidth, and a provider is only as good as its loads and stores.

The square of a number above the dtype's square root overflows to infinity, as torch's does.
"""

from __future__ import annotations

from kernel_pipeline.contract import EPSILON, Kernel, Provider, Tolerance, Work, bytes_of
from kernel_pipeline.threads import Threads, numba_fits

from ..elementwise import Matrix, few_rows
from ..rows import Row, Tile, elements_a_thread, row_fits

SMALLEST_NORMAL = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}
"""The smallest number of a dtype that is not subnormal."""

TOLERANCES = {
    dtype: Tolerance(rtol=EPSILON[dtype], atol=smallest) for dtype, smallest in SMALLEST_NORMAL.items()
}
"""A product is rounded once, by half an eps at most. The limit of a whole eps rejects a second rounding in a
narrower dtype and accepts Triton's interpreter, which truncates float32 to bfloat16. The smallest normal
number is for providers that flush subnormals to zero."""


def work(problem: Matrix) -> Work:
    """Return the least work: the matrix read and written once; one operation per element."""
    return Work(bytes_of(problem.dtype, problem.shape, problem.shape), {"float32": problem.elements})


def tolerance(problem: Matrix) -> Tolerance:
    """Return how far a square may be from the reference."""
    return TOLERANCES[problem.dtype]


kernel = Kernel(
    problem=Matrix,
    size=("rows", "columns"),
    work=work,
    tolerance=tolerance,
    interpreted=few_rows,
    any_order=True,
    providers=(
        Provider("torch_square", "torch.py:square"),
        Provider("torch_mul", "torch.py:mul"),
        Provider("torch_pow", "torch.py:power"),
        Provider("torch_compile", "torch.py:mul", compiled=True),
        Provider("triton_row", "triton.py:square_rows", Row, row_fits, textbook=True),
        Provider("triton_flat", "triton.py:square_flat", Tile, compile_weight=elements_a_thread),
        Provider("cuda_naive", "cuda.py:cuda_naive", extension="cuda.cu"),
        Provider("cuda", "cuda.cu:cuda", Tile),
        Provider("cpp", "cpp.cpp:cpp"),
        Provider("numba", "numba.py:square", Threads, numba_fits),
    ),
    baseline="torch_square",
)
