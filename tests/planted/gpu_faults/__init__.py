"""Twice the input, by providers that each do one thing wrong on a GPU, with right ones between them."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int
    dtype: str = one_of("float32")


def work(problem: Vector) -> Work:
    shape = (problem.elements,)
    return Work(bytes_of(problem.dtype, shape, shape), {problem.dtype: problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=1e-6, atol=0.0)


TORCH = (
    *("right", "tells_openmp", "right_once", "writes_once", "remembers", "never_writes", "synchronizes"),
    "allocates",
)
TRITON = ("illegal_access", "triton_right", "endless", "too_much_shared", "does_not_compile")

kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=(
        *(Provider(name, f"torch.py:{name}") for name in TORCH),
        *(Provider(name, f"triton.py:{name}") for name in TRITON),
        Provider("right_at_the_end", "torch.py:right"),
    ),
    baseline="right",
)
