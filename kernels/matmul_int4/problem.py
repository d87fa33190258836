"""The problem of the four-bit product: its dimensions, its least work, its tolerance."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kernel_pipeline.contract import EPSILON, Tolerance, Work, bytes_of, one_of

TILE_N = 8
"""Rows of w in a tile of the packing."""

TILE_K = 128
"""Columns of w in a tile of the packing."""

GROUPS = {"group_128": 128, "group_64": 64, "group_32": 32, "channel": 0}
"""Neighbouring weights of a row that share a scale, by granularity; 0 for all."""


def up(value: int, multiple: int) -> int:
    """Return the least multiple that is not below a value."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A product of an m by k matrix and the transpose of an n by k one of four-bit weights."""

    m: int
    n: int
    k: int
    dtype: str = one_of("bfloat16", "float16")
    granularity: str = one_of("group_128", "group_64", "group_32", "channel")

    @property
    def group(self) -> int:
        """Weights of a row that share a scale."""
        return GROUPS[self.granularity] or up(self.k, TILE_K)

    @property
    def packed_shape(self) -> tuple[int, int, int, int]:
        """The shape of the weights, in words of eight."""
        return up(self.n, TILE_N) // TILE_N, up(self.k, TILE_K) // TILE_K, 32, 4

    @property
    def scales_shape(self) -> tuple[int, int, int]:
        """The shape of the scales and zeros."""
        return up(self.k, self.group) // self.group, self.n, 2


MOST_INTERPRETED = {"m": 18, "n": 40, "k": 256}
"""The largest dimensions that Triton's interpreter is given: tiles of each, the last in part."""


def work(problem: Problem) -> Work:
    """Each input read once, the output written once, a multiplication and an addition for each product."""
    moved = bytes_of(problem.dtype, (problem.m, problem.k), (problem.m, problem.n), problem.scales_shape)
    moved += bytes_of("int32", problem.packed_shape)
    return Work(moved, {problem.dtype: 2 * problem.m * problem.n * problem.k})


def tolerance(problem: Problem) -> Tolerance:
    """Return how far an output may be from the reference, for inputs of about the size of those that are
    made: x and the dequantised weights have a variance of 1, an output is about ``sqrt(k)`` large.

    Below, eps is the dtype's, half of it the largest error of a rounding and 0.2 of it the root mean square;
    limits are for the worst of 1e8 outputs, 6 standard deviations out.

    - *Weights rounded to the dtype*, as tensor cores take them, once or after the product with the scale and
      again after the sum with the zero: at most ``0.3 eps`` a product, ``1.8 eps sqrt(k)`` at the worst.
    - *Parts rounded to the dtype* before they are added, as cuBLAS may: ``1.2 eps sqrt(k)``.
    - *The output, rounded once or twice*: ``2 eps`` of it.
    - *Sums in float32*: 2 eps of float32 for each of k and 8 products, and ``eps sqrt(k)`` of the output.

    Of few products some are far from normal: 8 more. At k = 8192 in bfloat16 that is 2.8 + 0.016 |out|: a
    group of 128 left out, or one with another's scale, is wrong by about 11, a zero left out by 19, and two
    weights that changed places by 1.4 for each such pair of the row's, thousands of them if the packing is
    misread.
    """
    eps, single = EPSILON[problem.dtype], EPSILON["float32"]
    k = problem.k
    atol = 4 * eps * math.sqrt(k + 8) + 2 * single * (k + 8)
    return Tolerance(2 * eps + single * math.sqrt(k), atol)


def interpreted(problem: Problem) -> Problem:
    """Return a small problem for Triton's slow interpreter; odd dimensions stay odd."""
    small = {
        name: value if (value := getattr(problem, name)) <= most else most + value % 2
        for name, most in MOST_INTERPRETED.items()
    }
    return dataclasses.replace(problem, **small)
