"""Sum of two vectors: ``out = x + y``, element by element.

Read this kernel first: ``docs/first-kernel.md`` goes through it in each language. Elements are independent,
so it shows only how a launch divides the vector into blocks, and how the last block masks the elements past
the end.

An element costs one operation, the addition, two reads and one write. So memory limits it everywhere: the
least time is bytes over bandwidth.

A sum beyond the dtype's largest number is infinity, as torch's is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kernel_pipeline.contract import EPSILON, Kernel, Provider, Tolerance, Work, bytes_of, one_of
from kernel_pipeline.threads import Threads, numba_fits

from ..rows import Tile, elements_a_thread

SMALLEST_NORMAL = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}
"""The smallest number of a dtype that is not subnormal."""

MOST_INTERPRETED = 2500
"""The maximum number of elements for an interpreter: two blocks of 1024, and part of a third."""


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Two vectors of the same number of elements."""

    elements: int
    dtype: str = one_of("float32", "bfloat16", "float16")


def work(problem: Vectors) -> Work:
    """Return the least work: both vectors read once and the sum written once; one operation per element."""
    shape = (problem.elements,)
    return Work(bytes_of(problem.dtype, shape, shape, shape), {"float32": problem.elements})


def tolerance(problem: Vectors) -> Tolerance:
    """Return how far a sum may be from the reference.

    A sum is rounded once, by half an eps at most. A whole eps allows for Triton's interpreter, which
    truncates float32 to bfloat16. The smallest normal number is for providers that flush subnormals to zero.
    """
    return Tolerance(rtol=EPSILON[problem.dtype], atol=SMALLEST_NORMAL[problem.dtype])


def interpreted(problem: Vectors) -> Vectors:
    """Return a small problem for a slow interpreter."""
    return dataclasses.replace(problem, elements=min(problem.elements, MOST_INTERPRETED))


kernel = Kernel(
    problem=Vectors,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    interpreted=interpreted,
    any_order=True,
    providers=(
        Provider("torch", "torch.py:add"),
        Provider("triton", "triton.py:add", Tile, compile_weight=elements_a_thread),
        Provider("cuda", "cuda.py:add", Threads, extension="cuda.cu"),
        Provider("cpp", "cpp.py:add", extension="cpp.cpp"),
        Provider("numba", "numba.py:add", Threads, numba_fits),
    ),
)
