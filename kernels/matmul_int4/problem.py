"""The four-bit product's problem: its dimensions, the least work and the tolerance."""

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
"""Neighbouring weights of a row that share a scale, by granularity; 0 means all."""


def up(value: int, multiple: int) -> int:
    """Return the value, rounded up to a multiple."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A product of an m by k matrix and the transpose of an n by k matrix of four-bit weights."""

    m: int
    n: int
    k: int
    dtype: str = one_of("bfloat16", "float16")
    granularity: str = one_of("group_128", "group_64", "group_32", "channel")

    @property
    def group(self) -> int:
        """The number of weights of a row that share a scale."""
        return GROUPS[self.granularity] or up(self.k, TILE_K)

    @property
    def packed_shape(self) -> tuple[int, int, int, int]:
        """The shape of the packed weights, in words of eight."""
        return up(self.n, TILE_N) // TILE_N, up(self.k, TILE_K) // TILE_K, 32, 4

    @property
    def scales_shape(self) -> tuple[int, int, int]:
        """The shape of the scales and zeros."""
        return up(self.k, self.group) // self.group, self.n, 2


MOST_INTERPRETED = {"m": 18, "n": 40, "k": 256}
"""The largest dimensions for Triton's interpreter: several tiles, the last only partly full."""


def work(problem: Problem) -> Work:
    """Return the least work: each input read once, the output written once, and a multiplication and an
    addition for each product."""
    moved = bytes_of(problem.dtype, (problem.m, problem.k), (problem.m, problem.n), problem.scales_shape)
    moved += bytes_of("int32", problem.packed_shape)
    return Work(moved, {problem.dtype: 2 * problem.m * problem.n * problem.k})


def tolerance(problem: Problem) -> Tolerance:
    """Return how far an output may be from the reference, for inputs about as large as those of
    ``reference.py``: x and the dequantised weights have a variance of 1, an output is about ``sqrt(k)``
    large.

    eps is the epsilon of the dtype: one rounding is wrong by at most eps / 2, with a root mean square of
    0.2 eps. The limits hold for the worst of 1e8 outputs, 6 standard deviations out.

    - *Weights* are rounded to the dtype for the tensor cores, once, or twice: after the product with the
      scale and after the sum with the zero. This is at most ``0.3 eps`` per product, ``1.8 eps sqrt(k)`` at
      the worst.
    - *Parts* may be rounded to the dtype before they are added, as in cuBLAS: ``1.2 eps sqrt(k)``.
    - *The output* is rounded once or twice: ``2 eps`` relative to it.
    - *Sums in float32*: 2 eps of float32 for each of k + 8 products, and ``eps sqrt(k)`` relative to the
      output.

    A few products are further from normal than a long sum, so the limit allows 8 products more. At k = 8192
    in bfloat16 it is 2.8 + 0.016 |out|. A missing group of 128, or another group's scale, is wrong by about
    11, and a missing zero by 19. Two swapped weights are wrong by 1.4, times the root of the number of such
    pairs in a row, which are thousands if the packing is misread.
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
