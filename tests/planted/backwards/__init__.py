"""A vector backwards; its number of elements is all there is to say of a problem."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int


def work(problem: Vector) -> Work:
    shape = (problem.elements,)
    return Work(bytes_of("float32", shape, shape), {})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=0.0, atol=0.0)


kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=(Provider("torch", "torch.py:flip"), Provider("rolled", "torch.py:rolled")),
)
