"""Twice a vector, by Triton kernels in two files that share a third, and by one in Gluon."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int
    dtype: str = one_of("float32")


@dataclass(frozen=True, kw_only=True)
class Block:
    block: int = one_of(16, 32, 1024, unit="")


def work(problem: Vector) -> Work:
    shape = (problem.elements,)
    return Work(bytes_of(problem.dtype, shape, shape), {"float32": problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=0.0, atol=0.0)


def one_block(problem: Vector, parameters: Block, gpu: Gpu | None) -> str | None:
    if problem.elements > parameters.block:
        return f"one block holds all: {problem.elements} elements > {parameters.block}"
    return None


kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("torch", "torch.py:double"),
        Provider("blocks", "blocks.py:by_blocks", Block, language="triton"),
        Provider("held", "held.py:all_held", Block, one_block, language="triton"),
        Provider("without_tail", "blocks.py:without_tail", Block, language="triton"),
        Provider("hopper", "gluon.py:double", needs="sm_90a"),
    ),
)
