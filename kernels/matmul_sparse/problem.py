"""The 2:4 sparse product's problem: its dimensions, the least work and the tolerance."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kernel_pipeline.contract import EPSILON, Tolerance, Work, bytes_of, one_of

TILE_N = 16
"""Rows of w in a tile of the metadata."""

TILE_K = 64
"""Columns of w in a tile of the metadata."""


def up(value: int, multiple: int) -> int:
    """Return the value, rounded up to a multiple."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A product of an m by k matrix and the transpose of a sparse n by k matrix."""

    m: int
    n: int
    k: int
    dtype: str = one_of("bfloat16", "float16")

    @property
    def values_shape(self) -> tuple[int, int]:
        """The shape of the kept weights."""
        return self.n, up(self.k, TILE_K) // 2

    @property
    def metadata_shape(self) -> tuple[int, int, int]:
        """The shape of the metadata."""
        return up(self.n, TILE_N) // TILE_N, up(self.k, TILE_K) // TILE_K, 32


MOST_INTERPRETED = 72
"""The largest dimension for Triton's interpreter: tiles of 16 to 64, the last only partly full."""


def work(problem: Problem) -> Work:
    """Return the least work: each input read once, the output written once, and a multiplication and an
    addition for each product with a kept weight."""
    moved = bytes_of(problem.dtype, (problem.m, problem.k), (problem.m, problem.n), problem.values_shape)
    moved += bytes_of("int32", problem.metadata_shape)
    return Work(moved, {problem.dtype: problem.m * problem.n * problem.k})


def tolerance(problem: Problem) -> Tolerance:
    """Return how far an output may be from the reference, for inputs as large as standard normal values.

    An output is a sum of k / 2 products, about ``sqrt(k / 2)`` large. eps is the epsilon of the dtype. The
    limits hold for the worst of 1e8 outputs, 6 standard deviations out.

    - *Sums in float32*: 2 eps of float32 for each of k / 2 + 8 products, and ``eps sqrt(k)`` relative to the
      output.
    - *Parts* may be rounded to the dtype before they are added, as in libraries: ``1.2 eps sqrt(k / 2)``,
      and an eps relative to the output.
    - *The output* is rounded once, by half an eps relative to it.

    At k = 8192 in bfloat16 the limit is 1 + 0.016 |out|. Two swapped weights of a row are wrong by about 2.4,
    a missing tile of 64 columns by 5.7.
    """
    eps, single = EPSILON[problem.dtype], EPSILON["float32"]
    products = problem.k / 2
    atol = 2 * eps * math.sqrt(products + 8) + 2 * single * (products + 8)
    return Tolerance(2 * eps + single * math.sqrt(problem.k), atol)


def interpreted(problem: Problem) -> Problem:
    """Return a small problem for Triton's slow interpreter; odd dimensions stay odd."""
    small = {
        name: value if (value := getattr(problem, name)) <= MOST_INTERPRETED else MOST_INTERPRETED + value % 2
        for name in ("m", "n", "k")
    }
    return dataclasses.replace(problem, **small)
