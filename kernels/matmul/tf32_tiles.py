"""The tiles of the product in tf32 by Hopper's tensor cores, and what it supports."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, one_of

from .problem import Problem


@dataclass(frozen=True, kw_only=True)
class Tf32Tiles:
    """The columns of a tile, which has 128 rows."""

    block_n: int = one_of(128, 256, default=256, unit="")


def tf32_fits(problem: Problem, tiles: Tf32Tiles, gpu: Gpu | None) -> str | None:
    """Return the reason why the kernel does not compute the problem or why narrower tiles are enough, or
    None."""
    del gpu
    if (problem.dtype, problem.arithmetic) != ("float32", "tf32"):
        return "it multiplies only float32 in tf32"
    if tiles.block_n > 128 >= problem.n:
        return f"a smaller block is enough: block_n {tiles.block_n} > 128 for n = {problem.n}"
    return None
