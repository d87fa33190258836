"""The largest elements of each row and their places: of equal elements any may be named, so the kernel has
a comparison of its own."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Rows:
    rows: int
    columns: int = 1000
    largest: int = 8
    dtype: str = one_of("bfloat16", "float32")


def work(problem: Rows) -> Work:
    return Work(
        bytes_of(problem.dtype, (problem.rows, problem.columns)), {"float32": problem.rows * problem.columns}
    )


def tolerance(problem: Rows) -> Tolerance:
    return Tolerance(rtol=0.0, atol=0.0)


kernel = Kernel(
    problem=Rows,
    size=("rows",),
    work=work,
    tolerance=tolerance,
    arguments=("largest",),
    comparison="compare",
    providers=(
        Provider("torch", "torch.py:top"),
        Provider("by_sort", "torch.py:by_sort"),
        Provider("next_place", "torch.py:next_place"),
        Provider("twice_the_first", "torch.py:twice_the_first"),
        Provider("out_of_order", "torch.py:out_of_order"),
        Provider("nothing", "torch.py:nothing"),
    ),
)
