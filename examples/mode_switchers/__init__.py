"""Twice a vector, by correct providers that may switch the mode of the launch gap in their process.

python -m pipeline.accuracy runs them between the points that it measures: they must not change any time.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    """A vector, by its number of elements."""

    elements: int
    dtype: str = one_of("float32")


def work(problem: Vector) -> Work:
    """Return the least work: one multiplication per element, which is read and written once."""
    shape = (problem.elements,)
    return Work(bytes_of(problem.dtype, shape, shape), {problem.dtype: problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    """Return no tolerance, because twice a number is exact."""
    return Tolerance(rtol=0.0, atol=0.0)


kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("plain", "torch.py:plain"),
        *(
            Provider(name, f"torch.py:{name}", devices=("cuda",))
            for name in ("streams", "captures", "profiles", "second_process")
        ),
    ),
    baseline="plain",
)
