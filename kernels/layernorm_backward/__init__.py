"""Layer normalization, backward: the gradients of x, weight and bias, given the gradient of the output.

With ``r = 1 / sqrt(var + eps)``, ``n = (x - mean) * r`` and ``g = d_out * weight``, a row at a time:

    d_x = r * (g - mean(g) - n * mean(g * n))
    d_weight = the sum over the rows of d_out * n,   d_bias = the sum over the rows of d_out

This is the derivative of Ba, Kiros and Hinton's definition, "Layer Normalization", 2016, arXiv:1607.06450.
The inputs are d_out, x and weight, all of one dtype; the bias has no part in the gradients. mean and r are
computed again from x, because the forward pass returns no statistics. Peers and torch's kernel take them as
inputs and get them from torch's forward pass here.

An element costs sixteen flops: the addition to the mean, the difference, the square and its addition, the
product with the weight and its addition, the product with the difference and its addition, three for n and
its product with d_out, the additions to both sums, and three for the differences. Memory limits the time: x
and d_out are read once and d_x is written once as long as a program can hold its row.

The Triton providers sum up ``d_out * n`` and ``d_out`` in float32 as those of ``rmsnorm_backward`` do. All
providers compute in float32.
"""

from __future__ import annotations

from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance, Work, bytes_of

from ..layernorm import EPS
from ..row_gradients import MultiPass, Persistent, multi_pass_fits, persistent_fits, tolerances
from ..rows import Matrix, elements_a_thread, few_rows, row_fits


def work(problem: Matrix) -> Work:
    """Return the least work: d_out, x and weight read once, d_x, d_weight and d_bias written once; sixteen
    operations per element."""
    of_columns = (problem.columns,)
    moved = bytes_of(problem.dtype, *(problem.shape,) * 3, *(of_columns,) * 3)
    return Work(moved, {"float32": 16 * problem.elements})


def tolerance(problem: Matrix) -> tuple[Tolerance, ...]:
    """Return how far d_x, d_weight and d_bias may be from the reference."""
    return tolerances(problem, sums=2, largest=EPS**-0.5)


def fits(problem: Matrix, parameters: Persistent, gpu: Gpu | None) -> str | None:
    """Return the reason why a persistent program can't have this launch, or None."""
    return persistent_fits(problem, parameters, gpu, sums=2)


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
    as_made=True,  # torch's kernels give NaN where an infinite gradient leaves an infinity by the formulas
    any_order=True,
    providers=(
        Provider("torch", "torch.py:layer_norm_backward"),
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
