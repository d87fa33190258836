"""``sum += x``, in place: the first input is written over and is the output."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int
    dtype: str = one_of("float32", "int32")


def work(problem: Vector) -> Work:
    shape = (problem.elements,)
    return Work(bytes_of(problem.dtype, shape, shape, shape), {"float32": problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=1e-6, atol=1e-6) if problem.dtype == "float32" else Tolerance(rtol=0.0, atol=0.0)


WRONG = ("writes_nothing", "writes_half", "returns_another", "writes_the_other_too", "writes_once")

kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    in_place=True,
    baseline="returns_it",
    providers=(
        Provider("returns_it", "torch.py:returns_it"),
        Provider("returns_nothing", "torch.py:returns_nothing"),
        *(Provider(name, f"torch.py:{name}") for name in WRONG),
        Provider("right_at_the_end", "torch.py:returns_it"),
    ),
)
