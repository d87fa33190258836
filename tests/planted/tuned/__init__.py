"""Twice the input, by a provider with a grid that is too large to measure: for searches."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int
    dtype: str = one_of("float32")


@dataclass(frozen=True, kw_only=True)
class Grid:
    block: int = one_of(16, 32, 64, 128, 256, unit="")
    stages: int = one_of(1, 2, 3, 4, unit="s")
    order: str = one_of("rows", "columns")


def work(problem: Vector) -> Work:
    shape = (problem.elements,)
    return Work(bytes_of(problem.dtype, shape, shape), {problem.dtype: problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=1e-6, atol=0.0)


def fits(problem: Vector, grid: Grid, gpu: Gpu | None) -> str | None:
    """Accept 32 of 40 configurations."""
    return f"too many stages: {grid.stages} > 2" if grid.block == 256 and grid.stages > 2 else _odd(grid)


def _odd(grid: Grid) -> str | None:
    return (
        "no columns in one stage"
        if grid.stages == 1 and grid.order == "columns" and grid.block > 16
        else None
    )


kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=(Provider("mul", "torch.py:mul"), Provider("grid", "torch.py:grid", Grid, fits)),
    baseline="mul",
)
