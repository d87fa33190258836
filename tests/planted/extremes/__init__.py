"""How far each row reaches and where: the largest less the smallest element, and the places of both.

Two outputs, neither of the input's shape nor of its dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Rows:
    rows: int = 8
    columns: int
    dtype: str = one_of("float32")


def work(problem: Rows) -> Work:
    read = bytes_of(problem.dtype, (problem.rows, problem.columns))
    written = bytes_of("bfloat16", (problem.rows,)) + bytes_of("int32", (problem.rows, 2))
    return Work(read + written, {"float32": 2 * problem.rows * problem.columns})


def tolerance(problem: Rows) -> tuple[Tolerance, Tolerance]:
    """Allow bfloat16's rounding of the reach, and no error of the places."""
    return Tolerance(rtol=2.0**-8, atol=0.0), Tolerance(rtol=0.0, atol=0.0)


WRONG = (
    "places_swapped",
    "places_too_wide",
    "reach_alone",
    "turned_about",
    "places_unwritten",
    "last_place_unwritten",
    "reach_unwritten",
    "places_once",
)

kernel = Kernel(
    problem=Rows,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("torch", "torch.py:extremes"),
        Provider("as_list", "torch.py:as_list"),
        *(Provider(name, f"torch.py:{name}") for name in WRONG),
        Provider("right_at_the_end", "torch.py:extremes"),
    ),
)
