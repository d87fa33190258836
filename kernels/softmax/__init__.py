"""Softmax over the rows of a matrix: ``out = exp(x - max(x)) / sum(exp(x - max(x)))``, a row at a time.

Subtracting the row's maximum changes nothing in exact arithmetic and keeps exp from overflowing.
``triton_online`` finds the maximum and the sum in one pass, after Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018, arXiv:1805.02867.

An element costs five flops: the comparison for the maximum, the subtraction, exp counted as one, the addition
to the sum, the division. Memory limits the time: each element is read once and written once as long as a
program can hold its row. Otherwise the row is read twice; the second read comes from L2 or costs half as much
again. Unfused, five kernels read and write the whole matrix.

A row with a NaN or a +inf is all NaN, and so is a row of only -inf; beside finite numbers, -inf has
weight 0. This repository's providers refuse a matrix without columns; torch returns it.
"""

from __future__ import annotations

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of
from kernel_pipeline.threads import Threads, numba_fits

from ..rows import Matrix, Row, Tile, elements_a_thread, few_rows, row_fits, rows_fit_tile, step_fits
from ..rows_plan import RowsPlan, plan_fits

TOLERANCES = {
    "float32": Tolerance(rtol=2e-5, atol=2e-38),
    "bfloat16": Tolerance(rtol=5e-2, atol=2e-38),
    "float16": Tolerance(rtol=6e-3, atol=2e-7),
}
"""The limits are relative: an output is about 1 / columns, and an absolute limit for narrow rows would accept
zeros in a wide one. The unfused form sets them, on normal inputs: ``x - max`` is at least -11 and rounded by
up to 2**-5 in bfloat16 and 2**-8 in float16, which exp turns into that relative error; exp, sum and quotient
are rounded once more each. In float32 the errors come from exp and from the long sum. The absolute part is
for the smallest numbers: they may be flushed in float32 and bfloat16, and be off by three subnormal steps in
float16."""


def work(problem: Matrix) -> Work:
    """Return the least work: the matrix read and written once; five operations per element."""
    return Work(bytes_of(problem.dtype, problem.shape, problem.shape), {"float32": 5 * problem.elements})


def tolerance(problem: Matrix) -> Tolerance:
    """Return how far an output may be from the reference."""
    return TOLERANCES[problem.dtype]


kernel = Kernel(
    problem=Matrix,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    interpreted=few_rows,
    any_order=True,
    providers=(
        Provider("manual", "torch.py:manual"),
        Provider("torch", "torch.py:softmax"),
        Provider("torch_compile", "torch.py:manual", compiled=True),
        Provider("triton_row", "triton.py:softmax_row", Row, row_fits, textbook=True),
        Provider(
            "triton_tile", "triton.py:softmax_tile", Tile, rows_fit_tile, compile_weight=elements_a_thread
        ),
        Provider(
            "triton_online", "triton.py:softmax_online", Tile, step_fits, compile_weight=elements_a_thread
        ),
        Provider("cuda", "cuda.cu:cuda", RowsPlan, plan_fits),
        Provider("cpp", "cpp.cpp:cpp"),
        Provider("numba", "numba.py:softmax", Threads, numba_fits),
        Provider("quack", "peers.py:quack", language="torch", devices=("cuda",), package="quack-kernels"),
        Provider("liger", "peers.py:liger", None, row_fits, "triton", package="liger-kernel"),
    ),
)
