"""Make weights 2:4 sparse: of every four neighbours in a row of w, n by k, keep the two of largest magnitude,
the first if several are equal.

``step`` chooses the result. ``prune``: w with zeros for the other weights. ``compress``: the inputs of
``matmul_sparse``, which are the kept values, n by k / 2, and their places, packed as its declaration says.
``transpose``: the same for w's transpose, k by n, whose rows are w's columns, as a backward pass multiplies
it. Rows are padded with zeros to a multiple of 64.

Inference makes weights sparse once, offline. Training does so whenever the weights have changed: once for the
product and once for the transpose, because neither compressed form contains the other.

The least work: w is read once, the outputs are written once, and four neighbours take six comparisons.
Nothing is rounded, so outputs must be equal to the reference.

The rule comes from Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance, Work, bytes_of, one_of

from ..matmul_sparse.problem import TILE_K, TILE_N, up

MOST_INTERPRETED = 130
"""The largest dimension for Triton's interpreter: several tiles of 64, the last only partly full."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A matrix of weights, and the step to apply to it."""

    n: int
    k: int
    dtype: str = one_of("bfloat16", "float16")
    step: str = one_of("compress", "prune", "transpose")

    @property
    def shape(self) -> tuple[int, int]:
        """The rows and columns of the matrix whose rows are made sparse."""
        return (self.k, self.n) if self.step == "transpose" else (self.n, self.k)

    @property
    def values_shape(self) -> tuple[int, int]:
        """The shape of the kept values."""
        rows, columns = self.shape
        return rows, up(columns, TILE_K) // 2

    @property
    def metadata_shape(self) -> tuple[int, int, int]:
        """The shape of the metadata."""
        rows, columns = self.shape
        return up(rows, TILE_N) // TILE_N, up(columns, TILE_K) // TILE_K, 32


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """The rows and columns of a Triton program's tile."""

    block_rows: int = one_of(16, 32, 64, default=32, unit="")
    block_columns: int = one_of(64, 128, 256, default=128, unit="")
    num_warps: int = one_of(2, 4, 8, default=4, unit="w")


def work(problem: Problem) -> Work:
    """Return the least work: w read once, the outputs written once, six comparisons for four neighbours."""
    size = problem.n * problem.k
    moved = bytes_of(problem.dtype, (problem.n, problem.k))
    if problem.step == "prune":
        moved *= 2
    else:
        moved += bytes_of(problem.dtype, problem.values_shape) + bytes_of("int32", problem.metadata_shape)
    return Work(moved, {"float32": size * 6 // 4})


def tolerance(problem: Problem) -> Tolerance:
    """Return no tolerance, because the kernel only selects values."""
    del problem
    return Tolerance(0.0, 0.0)


def interpreted(problem: Problem) -> Problem:
    """Return a small problem for Triton's slow interpreter; odd dimensions stay odd."""
    small = {
        name: value if (value := getattr(problem, name)) <= MOST_INTERPRETED else MOST_INTERPRETED + value % 2
        for name in ("n", "k")
    }
    return dataclasses.replace(problem, **small)


def tiles_fit(problem: Problem, tiles: Tiles, gpu: Gpu | None) -> str | None:
    """Return the reason why a Triton program can't have these tiles or why smaller tiles are enough, or
    None."""
    del gpu
    each = tiles.block_rows * tiles.block_columns // (32 * tiles.num_warps)
    if each > 64:
        return f"too much for the registers: {each} weights per thread > 64"
    for name, extent, smallest in zip(("rows", "columns"), problem.shape, (TILE_N, TILE_K), strict=True):
        block = getattr(tiles, f"block_{name}")
        if block > (enough := max(smallest, 1 << (extent - 1).bit_length())):
            return f"a smaller block is enough: block_{name} {block} > {enough} for {extent} {name}"
    return None


kernel = Kernel(
    problem=Problem,
    size=("n", "k"),
    work=work,
    tolerance=tolerance,
    headline="gbps",
    arguments=("step",),
    interpreted=interpreted,
    as_made=True,
    any_order=True,
    providers=(
        Provider("torch", "torch.py:sparsify"),
        Provider("torch_compile", "torch.py:sparsify", compiled=True),
        Provider("triton", "triton.py:sparsify", Tiles, tiles_fit),
    ),
)
