"""Root mean square normalization over the rows of a matrix: ``out = x / sqrt(mean(x**2) + eps) * weight``.

The definition comes from Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
The mean belongs to the row; eps is 1e-6, as in language models. weight has one number for each column.

Both inputs have the same dtype. An element costs four flops: the square and its addition to the sum, the
factor and the weight. Memory limits the time: each element of x is read once and written once as long as a
program can hold its row; the weight stays in the caches.

All providers compute in float32; past 1e16 the squares may overflow. A row with a NaN is all NaN. In a row
with an infinity, the infinity becomes NaN and finite numbers become 0. This repository's providers refuse a
matrix without columns. ``rmsnorm_backward`` has the gradients.
"""

from __future__ import annotations

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of

from ..rows import Matrix, Row, Tile, elements_a_thread, few_rows, row_fits, rows_fit_tile, step_fits
from ..rows_plan import RowsPlan, plan_fits

EPS = 1e-6
"""Added to the mean square; also in cuda.cu and cpp.cpp."""

TOLERANCES = {
    "float32": Tolerance(rtol=1e-5, atol=1e-34),
    "bfloat16": Tolerance(rtol=1.6e-2, atol=1e-34),
    "float16": Tolerance(rtol=2e-3, atol=2e-7),
}
"""torch rounds the normalized value to the dtype, applies the weight, and rounds again: half an eps each; the
limit is twice that. The absolute part is for the smallest numbers. In float32 and bfloat16, subnormal inputs
may become zero, and 1 / sqrt(eps) and a weight of some units make up to 1e-34 of them. In float16 it is three
subnormal steps."""


def work(problem: Matrix) -> Work:
    """Return the least work: the matrix read and written once, the weight read once; four operations per
    element."""
    moved = bytes_of(problem.dtype, problem.shape, (problem.columns,), problem.shape)
    return Work(moved, {"float32": 4 * problem.elements})


def tolerance(problem: Matrix) -> Tolerance:
    """Return how far an output may be from the reference."""
    return TOLERANCES[problem.dtype]


kernel = Kernel(
    problem=Matrix,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    interpreted=few_rows,
    largest=1e16,
    any_order=True,
    providers=(
        Provider("torch", "torch.py:rms_norm"),
        Provider("torch_compile", "torch.py:rms_norm", compiled=True),
        Provider("triton_row", "triton.py:rmsnorm_row", Row, row_fits, textbook=True),
        Provider(
            "triton_tile", "triton.py:rmsnorm_tile", Tile, rows_fit_tile, compile_weight=elements_a_thread
        ),
        Provider(
            "triton_two_pass", "triton.py:rmsnorm_two_pass", Tile, step_fits, compile_weight=elements_a_thread
        ),
        Provider("cuda", "cuda.cu:cuda", RowsPlan, plan_fits),
        Provider("cpp", "cpp.cpp:cpp"),
        Provider("quack", "peers.py:quack", language="torch", devices=("cuda",), package="quack-kernels"),
        Provider("liger", "peers.py:liger", None, row_fits, "triton", package="liger-kernel"),
    ),
)
