"""Softmax, backward: the gradient of x, given softmax's output and the gradient of it, a row at a time.

    d_x = (d_out - sum(d_out * out)) * out

This is softmax's Jacobian ``diag(out) - out out^T``, times d_out. The inputs are d_out and out, of one dtype.
out is random, as large as the softmax of normal numbers: the formula holds for any numbers, and a row need
not sum up to 1.

An element costs four flops: the product and its addition to the sum, the difference and the second product.
Memory limits the time: both inputs are read once and d_x is written once as long as a program can hold its
row. All providers compute in float32, where the difference of two numbers past 1e37 may overflow.
"""

from __future__ import annotations

from kernel_pipeline.contract import EPSILON, Gpu, Kernel, Provider, Tolerance, Work, bytes_of

from ..row_gradients import multi_pass_fits
from ..rows import Matrix, Tile, elements_a_thread, few_rows, row_fits, rows_fit_tile


def work(problem: Matrix) -> Work:
    """Return the least work: two matrices read and one written once; four operations per element."""
    return Work(bytes_of(problem.dtype, *(problem.shape,) * 3), {"float32": 4 * problem.elements})


def tolerance(problem: Matrix) -> Tolerance:
    """Return how far an output may be from the reference.

    An output is rounded once. An element of out is about 1 / columns, and it multiplies a difference that is
    wrong by some float32 eps of numbers of some units. In float16 the absolute part adds three subnormal
    steps.
    """
    rtol = max(2e-5, 1.02 * EPSILON[problem.dtype])
    subnormal = 2e-7 if problem.dtype == "float16" else 0.0
    return Tolerance(rtol=rtol, atol=2e-4 / problem.columns + subnormal)


def steps_fit(problem: Matrix, parameters: Tile, gpu: Gpu | None) -> str | None:
    """Return the reason why a program needs more warps for its steps, or None."""
    del gpu
    return multi_pass_fits(problem, parameters, registers=4)


MOST_BLOCKS, MOST_WARPS, MOST_VECTORS = 16, 16, 8
"""The most blocks of a cluster, the most warps of a block, and the most vectors of each input that a thread
of ``cuda.cu`` keeps."""


def cluster_fits(problem: Matrix, parameters: Tile, gpu: Gpu | None) -> str | None:
    """Return the reason why a row does not fit into the registers of a cluster, or None."""
    del gpu
    if parameters.num_warps > MOST_WARPS:
        return f"a block has {MOST_WARPS} warps at most, not {parameters.num_warps}"
    if parameters.block_size > max(256, 1 << (problem.columns - 1).bit_length()):
        return f"a smaller block_size is enough for {problem.columns} columns"
    blocks = 1 << (-(-problem.columns // parameters.block_size) - 1).bit_length()
    if blocks > MOST_BLOCKS:
        columns = MOST_BLOCKS * parameters.block_size
        return f"a cluster has {MOST_BLOCKS} blocks at most: {problem.columns} columns > {columns}"
    vectors = bytes_of(problem.dtype, (problem.columns,)) // 16
    of_thread = -(-vectors // (blocks * 32 * parameters.num_warps))
    if of_thread > MOST_VECTORS:
        return f"too much for the registers: {of_thread} vectors per thread > {MOST_VECTORS}"
    return None


kernel = Kernel(
    problem=Matrix,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    interpreted=few_rows,
    largest=1e37,
    any_order=True,
    providers=(
        Provider("torch", "torch.py:softmax_backward"),
        Provider("torch_compile", "torch.py:formula", compiled=True),
        Provider("triton_tile", "triton.py:tile", Tile, rows_fit_tile, compile_weight=elements_a_thread),
        Provider("triton_two_pass", "triton.py:two_pass", Tile, steps_fit, compile_weight=elements_a_thread),
        Provider("cuda", "cuda.py:cuda", Tile, cluster_fits, extension="cuda.cu", needs="sm_90"),
        Provider("quack", "peers.py:quack", language="torch", devices=("cuda",), package="quack-kernels"),
        Provider("liger", "peers.py:liger", None, row_fits, "triton", package="liger-kernel"),
    ),
)
