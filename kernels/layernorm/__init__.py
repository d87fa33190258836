"""Layer normalization over the rows of a matrix: ``out = (x - mean) / sqrt(var + eps) * weight + bias``.

The definition comes from Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450. mean and var
belong to the row, var without Bessel's correction; eps is 1e-5, torch's default. weight and bias have one
number for each column.

All inputs have the same dtype. An element costs eight flops: the addition to the sum, the subtraction of the
mean, its square and the addition to the squares' sum, the factor, weight and bias, and one for the mean's
share. Memory limits the time: each element of x is read once and written once as long as a program can hold
its row; weight and bias stay in the caches.

All providers compute in float32. This repository's providers first subtract an element of the row, so that a
row of equal numbers gives the bias exactly. The mean is rounded to float32, so smaller differences are lost.
Past 1e16 the squares may overflow. A row with a NaN or an infinity is all NaN. This repository's providers
refuse a matrix without columns. ``layernorm_backward`` has the gradients.
"""

from __future__ import annotations

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of

from ..rows import Matrix, Row, Tile, elements_a_thread, few_rows, row_fits, rows_fit_tile, step_fits
from ..rows_plan import RowsPlan, plan_with_bias_fits

EPS = 1e-5
"""Added to the variance; also in cuda.cu and cpp.cpp."""

TOLERANCES = {
    "float32": Tolerance(rtol=1e-5, atol=2e-5),
    "bfloat16": Tolerance(rtol=8e-3, atol=2e-5),
    "float16": Tolerance(rtol=1e-3, atol=2e-5),
}
"""An output is rounded once, by half an eps; the remaining error is float32's. The absolute part is for
outputs where weight times normalized value and bias cancel: both are a few units large, and each is wrong by
some float32 eps of that."""


def work(problem: Matrix) -> Work:
    """Return the least work: the matrix read and written once, weight and bias read once; eight operations
    per element."""
    of_columns = (problem.columns,)
    moved = bytes_of(problem.dtype, problem.shape, of_columns, of_columns, problem.shape)
    return Work(moved, {"float32": 8 * problem.elements})


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
        Provider("torch", "torch.py:layer_norm"),
        Provider("torch_compile", "torch.py:layer_norm", compiled=True),
        Provider("triton_row", "triton.py:layernorm_row", Row, row_fits, textbook=True),
        Provider(
            "triton_tile", "triton.py:layernorm_tile", Tile, rows_fit_tile, compile_weight=elements_a_thread
        ),
        Provider(
            "triton_online", "triton.py:layernorm_online", Tile, step_fits, compile_weight=elements_a_thread
        ),
        Provider("cuda", "cuda.cu:cuda", RowsPlan, plan_with_bias_fits),
        Provider("cpp", "cpp.cpp:cpp"),
        Provider("quack", "peers.py:quack", language="torch", devices=("cuda",), package="quack-kernels"),
        Provider("liger", "peers.py:liger", None, row_fits, "triton", package="liger-kernel"),
    ),
)
