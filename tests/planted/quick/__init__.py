"""Twice the input, in next to no time: for sweeps that are stopped, resumed and repeated."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int
    dtype: str = one_of("float32")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    block_size: int = one_of(256, 512, unit="")


def work(problem: Vector) -> Work:
    shape = (problem.elements,)
    return Work(bytes_of(problem.dtype, shape, shape), {problem.dtype: problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=1e-6, atol=0.0)


kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("mul", "torch.py:mul"),
        Provider("blocks", "blocks.py:add", Blocks, language="torch"),
    ),
    baseline="mul",
)
