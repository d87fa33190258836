"""Rows divided by the root of their mean square, with an ``eps`` of any value, and rows that may be empty."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, at_least, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Rows:
    rows: int = at_least(0)
    columns: int
    eps: float = 1e-6
    dtype: str = one_of("float32")


def work(problem: Rows) -> Work:
    shape = (problem.rows, problem.columns)
    return Work(bytes_of(problem.dtype, shape, shape), {problem.dtype: 3 * problem.rows * problem.columns})


def tolerance(problem: Rows) -> Tolerance:
    return Tolerance(rtol=1e-5, atol=1e-6)


kernel = Kernel(
    problem=Rows,
    size=("columns",),
    work=work,
    tolerance=tolerance,
    arguments=("eps",),
    providers=(Provider("torch", "torch.py:scaled"), Provider("fixed_eps", "torch.py:fixed_eps")),
)
