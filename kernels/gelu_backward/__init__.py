"""The derivative of GELU's tanh form, times the gradient of the output.

With ``u = sqrt(2 / pi) * (x + 0.044715 * x**3)`` and ``t = tanh(u)``:

    d_x = d_out * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * sqrt(2 / pi) * (1 + 3 * 0.044715 * x**2))

This is the derivative of the approximation in section 2 of Hendrycks and Gimpel, "Gaussian Error Linear Units
(GELUs)", 2016, arXiv:1606.08415. The inputs are d_out and x, of one dtype.

An element costs seventeen flops: seven up to tanh as in ``gelu``, tanh counted as one, two for the first
term, six for the second, of which x**2 is known, and the product with d_out. Memory limits the time: two
elements are read and one is written. The derivative is NaN at both infinities, as torch's is.
"""

from __future__ import annotations

from kernel_pipeline.contract import EPSILON, Kernel, Provider, Tolerance, Work, bytes_of

from ..elementwise import Matrix, few_rows
from ..rows import Tile, elements_a_thread, step_fits


def work(problem: Matrix) -> Work:
    """Return the least work: two matrices read and one written once; seventeen operations per element."""
    return Work(bytes_of(problem.dtype, *(problem.shape,) * 3), {"float32": 17 * problem.elements})


def tolerance(problem: Matrix) -> Tolerance:
    """Return how far an output may be from the reference.

    An output is rounded once. The absolute part is for negative x, where ``1 + tanh`` and both terms of the
    derivative cancel: each is wrong by some float32 eps of numbers of about 1, times d_out, which is some
    units.
    """
    return Tolerance(rtol=max(1e-5, 1.02 * EPSILON[problem.dtype]), atol=5e-6)


kernel = Kernel(
    problem=Matrix,
    size=("rows", "columns"),
    work=work,
    tolerance=tolerance,
    interpreted=few_rows,
    largest=8.0,
    any_order=True,
    providers=(
        Provider("torch", "torch.py:gelu_backward"),
        Provider("torch_compile", "torch.py:formula", compiled=True),
        Provider("triton", "triton.py:flat", Tile, step_fits, compile_weight=elements_a_thread),
    ),
)
