"""Twice the input, by providers that each do one thing wrong on a CPU, between two that are right."""

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


PROVIDERS = (
    "right",
    "talkative",
    "wrong",
    "nan",
    "right_once",
    "writes_once",
    "remembers",
    "never_writes",
    "changes_input",
    "wrong_dtype",
    "wrong_shape",
    "returns_none",
    "endless",
    "raises",
    "exits",
    "is_killed",
    "segfaults",
    "memory_error",
    "allocates",
)

kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=(
        *(Provider(name, f"torch.py:{name}") for name in PROVIDERS),
        Provider("right_at_the_end", "torch.py:right"),
    ),
    baseline="right",
)
