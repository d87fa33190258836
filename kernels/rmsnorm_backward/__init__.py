"""RMS normalization, backward: the gradients of x and weight, given the gradient of the output.

With ``r = 1 / sqrt(mean(x**2) + eps)``, ``n = x * r`` and ``g = d_out * weight``, a row at a time:

    d_x = r * (g - n * mean(g * n)),   d_weight = the sum over the rows of d_out * n

This is the derivative of Zhang and Sennrich's definition, "Root Mean Square Layer Normalization", 2019,
arXiv:1910.07467. The inputs are d_out, x and weight, all of one dtype. r is computed again from x, because
the forward pass returns no statistics; a peer that takes r gets it from an additional reading of x.

An element costs eleven flops: the square and its addition, the product with the weight, the product with x
and its addition, three for n and its product with d_out, whose addition to d_weight is the ninth, and two for
the difference. Memory limits the time: x and d_out are read once and d_x is written once as long as a program
can hold its row.

``triton_persistent`` takes many rows in each program and sums up ``d_out * n`` of its rows in float32, after
the tutorial of layer normalization in Triton's documentation. ``triton_multi_pass`` sums up in a kernel of
its own, which reads x and d_out again. A last kernel adds the sums of all programs. Without atomics the
outputs are the same at every call on the same GPU. All providers compute in float32; past 1e16 the squares
may overflow.
"""

from __future__ import annotations

from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance, Work, bytes_of

from ..rmsnorm import EPS
from ..row_gradients import MultiPass, Persistent, multi_pass_fits, persistent_fits, tolerances
from ..rows import Matrix, elements_a_thread, few_rows, row_fits


def work(problem: Matrix) -> Work:
    """Return the least work: d_out, x and weight read once, d_x and d_weight written once; eleven operations
    per element."""
    of_columns = (problem.columns,)
    moved = bytes_of(problem.dtype, *(problem.shape,) * 3, *(of_columns,) * 2)
    return Work(moved, {"float32": 11 * problem.elements})


def tolerance(problem: Matrix) -> tuple[Tolerance, ...]:
    """Return how far d_x and d_weight may be from the reference."""
    return tolerances(problem, sums=1, largest=EPS**-0.5)


def fits(problem: Matrix, parameters: Persistent, gpu: Gpu | None) -> str | None:
    """Return the reason why a persistent program can't have this launch, or None."""
    return persistent_fits(problem, parameters, gpu, sums=1)


def steps_fit(problem: Matrix, parameters: MultiPass, gpu: Gpu | None) -> str | None:
    """Return the reason why a program needs more warps for its steps, or None."""
    del gpu
    return multi_pass_fits(problem, parameters, registers=8)


kernel = Kernel(
    problem=Matrix,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    interpreted=few_rows,
    largest=1e16,
    any_order=True,
    providers=(
        Provider("torch", "torch.py:rms_norm_backward"),
        Provider("torch_compile", "torch.py:formula", compiled=True),
        Provider(
            "triton_persistent", "triton.py:persistent", Persistent, fits, compile_weight=elements_a_thread
        ),
        Provider(
            "triton_multi_pass",
            "triton_multi_pass.py:multi_pass",
            MultiPass,
            steps_fit,
            compile_weight=elements_a_thread,
        ),
        Provider("quack", "peers.py:quack", language="torch", devices=("cuda",), package="quack-kernels"),
        Provider("liger", "peers.py:liger", None, row_fits, "triton", package="liger-kernel"),
    ),
)
