"""Three times a vector: a kernel that is given by its folder, wherever that lies."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int
    dtype: str = one_of("float32")


@dataclass(frozen=True, kw_only=True)
class Block:
    block: int = one_of(64, 128, unit="")


def work(problem: Vector) -> Work:
    shape = (problem.elements,)
    return Work(bytes_of(problem.dtype, shape, shape), {"float32": problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=1e-6, atol=0.0)


kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("torch", "torch.py:triple"),
        Provider("blocks", "launches/blocks.py:triple", Block, language="triton"),
        Provider("cpp", "cpp.cpp:cpp"),
    ),
)
