"""Dropout: each element is zero with probability ``p``, drawn anew at each call, or else ``x / (1 - p)``."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Dropout:
    n: int
    p: float = 0.25
    dtype: str = one_of("float32")


def work(problem: Dropout) -> Work:
    return Work(bytes_of(problem.dtype, (problem.n,), (problem.n,)), {problem.dtype: problem.n})


def tolerance(problem: Dropout) -> Tolerance:
    del problem
    return Tolerance(rtol=1e-6, atol=0.0)


kernel = Kernel(
    problem=Dropout,
    size=("n",),
    work=work,
    tolerance=tolerance,
    arguments=("p",),
    comparison="compare",
    draws=8,
    peak_memory=True,
    host_time=True,
    providers=(
        Provider("torch", "torch.py:dropout"),
        Provider("by_parts", "torch.py:by_parts"),
        Provider("more", "torch.py:more"),
        Provider("pairs", "torch.py:pairs"),
        Provider("unscaled", "torch.py:unscaled"),
        Provider("same", "torch.py:same"),
        Provider("same_later", "torch.py:same_later"),
    ),
)
