"""Each head times the head of keys that it shares with its neighbours.

There are as many of those as of heads, unless they are named.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of, same_as


@dataclass(frozen=True, kw_only=True)
class Heads:
    heads: int
    kv_heads: int = same_as("heads")
    length: int = 16
    dtype: str = one_of("float32")


def work(problem: Heads) -> Work:
    heads, keys = (problem.heads, problem.length), (problem.kv_heads, problem.length)
    return Work(bytes_of(problem.dtype, heads, heads, keys), {"float32": problem.heads * problem.length})


def tolerance(problem: Heads) -> Tolerance:
    return Tolerance(rtol=1e-6, atol=0.0)


kernel = Kernel(
    problem=Heads,
    size=("heads",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("torch", "torch.py:shared"),
        Provider("first_head_alone", "torch.py:first_head_alone"),
    ),
)
