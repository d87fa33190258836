"""The positive elements of a vector and their places: outputs whose size depends on the data, up to the
vector's."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, at_least, bytes_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int = at_least(0)


def work(problem: Vector) -> Work:
    shape = (problem.elements,)
    return Work(bytes_of("float32", shape, shape) + bytes_of("int64", shape), {"float32": problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=0.0, atol=0.0)


kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    bounded=(0, 1),
    providers=(
        Provider("torch", "torch.py:positive"),
        Provider("by_nonzero", "torch.py:by_nonzero"),
        Provider("last_left_out", "torch.py:last_left_out"),
        Provider("places_from_one", "torch.py:places_from_one"),
        Provider("of_the_bound", "torch.py:of_the_bound"),
        Provider("beyond_the_bound", "torch.py:beyond_the_bound"),
        Provider("the_input", "torch.py:the_input"),
    ),
)
