"""Matrix product with four-bit weights: ``out = x @ w.T`` of x, m by k, in 16 bits, and w, n by k, in four.

``w[j, i] = (q[j, i] - 8) * scale + zero``, with one scale and one zero for ``granularity``: 32, 64 or 128
neighbouring weights of a row (inside of the sum), or the whole row (``channel``, after it). Each provider
takes one packing, that of torch's ``_weight_int4pack_mm``: ``packed[j // 8, i // 128, 4 * (j % 8) + t, p]``
is a word of eight weights of row j, with ``p = i % 128 // 32`` and ``t = i % 8 // 2``. The weight at
``i % 32 = 16 h + 8 e + 2 t + b`` is at its bits ``16 b + 8 h + 4 e`` and the three above. So a lane of a
warp that loads 16 bytes holds what ``mma.m16n8k16`` wants of it, and one logical operation takes two
neighbours out of a word, in the halves where 16-bit arithmetic on pairs wants them. What k lacks to a
multiple of 128 and n to one of 8 is packed as 8. ``scales_and_zeros`` is (groups, n, 2) in x's dtype.

Two operations a product, ``2 m n k``; each input is read once and the output written once. One row is limited
by the weights' bytes, a quarter of those in 16 bits; a thousand rows by the tensor cores, which multiply
in 16 bits all the same.

``torch`` is the product with the weights dequantised before the call: what the others have to beat. The form
of ``triton_gemm``, weights as the first operand, from registers, is that of mixed-input products in CUTLASS.
``cuda`` is after Frantar et al., "MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large
Language Models", 2024: weights straight to registers in the order of the tensor cores' operand.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kernels.contract import EPSILON, Gpu, Kernel, Provider, Tolerance, Work, bytes_of, one_of

TILE_N = 8
"""Rows of w in a tile of the packing."""

TILE_K = 128
"""Columns of w in a tile of the packing."""

GROUPS = {"group_128": 128, "group_64": 64, "group_32": 32, "channel": 0}
"""Neighbouring weights of a row that share a scale, by granularity; 0 for all."""


def up(value: int, multiple: int) -> int:
    """The least multiple from a value on."""
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
        """Of the weights, in words of eight."""
        return up(self.n, TILE_N) // TILE_N, up(self.k, TILE_K) // TILE_K, 32, 4

    @property
    def scales_shape(self) -> tuple[int, int, int]:
        """Of the scales and zeros."""
        return up(self.k, self.group) // self.group, self.n, 2


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """A Triton program's tile of the output, block_k products a step."""

    block_m: int = one_of(16, 32, 64, 128, 256, default=16, unit="")
    block_n: int = one_of(32, 64, 128, default=64, unit="")
    block_k: int = one_of(128, 256, unit="")
    num_warps: int = one_of(4, 8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=3, unit="s")


@dataclass(frozen=True, kw_only=True)
class Split(Tiles):
    """The same, with k divided among ``split_k`` programs."""

    split_k: int = one_of(2, 4, 8, 16, default=4, unit="k")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of w that a Triton program multiplies with one row of x, block_k products a step."""

    block_n: int = one_of(8, 16, 32, default=16, unit="")
    block_k: int = one_of(256, 512, 1024, default=512, unit="")
    num_warps: int = one_of(1, 2, 4, 8, default=4, unit="w")


@dataclass(frozen=True, kw_only=True)
class Warps:
    """How the warps of a CUDA block share w: ``tiles_n`` times 16 rows a warp, ``warps_k`` warps along k, and
    ``split_k`` blocks."""

    tiles_n: int = one_of(1, 2, default=2, unit="")
    warps_k: int = one_of(4, 8, 16, default=8, unit="w")
    split_k: int = one_of(1, 2, 4, unit="k")


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Warps of a program that dequantises a tile."""

    num_warps: int = one_of(4, 8, unit="w")


MOST_INTERPRETED = {"m": 18, "n": 40, "k": 256}
"""The largest dimensions that Triton's interpreter is given: tiles of each, the last in part."""

MOST_ROWS = {"triton_gemv": 4, "cuda": 32}
"""Rows of x up to which providers that read all of w for each few of them make sense."""


FEW_ROWS = 16
"""Rows of x up to which a CUDA block has any number of warps and tiles."""


def work(problem: Problem) -> Work:
    """Each input read once, the output written once, a multiplication and an addition for each product."""
    moved = bytes_of(problem.dtype, (problem.m, problem.k), (problem.m, problem.n), problem.scales_shape)
    moved += bytes_of("int32", problem.packed_shape)
    return Work(moved, {problem.dtype: 2 * problem.m * problem.n * problem.k})


def tolerance(problem: Problem) -> Tolerance:
    """How far an output may be from the reference, for inputs of about the size of those that are made: x and
    the dequantised weights have a variance of 1, an output is about ``sqrt(k)`` large.

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
    """The problem for Triton's interpreter, which is slow; what was odd stays odd."""
    small = {
        name: value if (value := getattr(problem, name)) <= most else most + value % 2
        for name, most in MOST_INTERPRETED.items()
    }
    return dataclasses.replace(problem, **small)


def whole_tiles(problem: Problem) -> str | None:
    """Why a kernel without masks can't take the weights, or None when it can."""
    for name, multiple in (("n", 16), ("k", TILE_K)):
        if getattr(problem, name) % multiple:
            return f"{name} must be a multiple of {multiple}: {getattr(problem, name)} is none"
    return None


def tiles_fit(problem: Problem, tiles: Tiles, gpu: Gpu | None) -> str | None:
    """Why a Triton program can't have such tiles, or why smaller ones do the same, or None when they fit."""
    for name, smallest in (("m", 16), ("n", 64), ("k", TILE_K)):
        extent, block = getattr(problem, name), getattr(tiles, f"block_{name}")
        if block > (enough := max(smallest, 1 << (extent - 1).bit_length())):
            return f"a smaller block does: block_{name} {block} > {enough} for {name} = {extent}"
    sums = tiles.block_m * tiles.block_n // (32 * tiles.num_warps)
    if sums > 128:
        return f"too much for the registers: {sums} sums a thread > 128"
    # In each stage x in 16 bits and w in four, and a scale with its zero for each word of eight weights.
    needed = tiles.num_stages * tiles.block_k * (2 * tiles.block_m + tiles.block_n)
    if gpu is not None and needed > gpu.shared_memory:
        return f"too much for the shared memory: {needed} bytes > {gpu.shared_memory}"
    return None


def split_fits(problem: Problem, tiles: Split, gpu: Gpu | None) -> str | None:
    """Why a product can't be split so, or None when it can."""
    if reason := tiles_fit(problem, tiles, gpu):
        return reason
    steps = up(problem.k, tiles.block_k) // tiles.block_k
    if tiles.split_k > max(steps, 2):
        return f"fewer parts do: split_k {tiles.split_k} > {steps} steps"
    return None


def rows_fit(problem: Problem, rows: Rows, gpu: Gpu | None) -> str | None:
    """Why one row after the other is no way to do it, or None when it is."""
    del gpu
    if problem.m > MOST_ROWS["triton_gemv"]:
        return f"reads all weights for each row of x: m {problem.m} > {MOST_ROWS['triton_gemv']}"
    if rows.block_k > (enough := max(256, 1 << (problem.k - 1).bit_length())):
        return f"a smaller block does: block_k {rows.block_k} > {enough} for k = {problem.k}"
    return None


def warps_fit(problem: Problem, warps: Warps, gpu: Gpu | None) -> str | None:
    """Why a CUDA block can't take it so, or None when it can."""
    del gpu
    if reason := whole_tiles(problem):
        return reason
    if problem.m > MOST_ROWS["cuda"]:
        return f"keeps the sums of all rows of x in registers: m {problem.m} > {MOST_ROWS['cuda']}"
    if problem.m > FEW_ROWS and (warps.tiles_n > 1 or warps.warps_k > 8):
        return (
            f"too much for the registers: tiles_n {warps.tiles_n} x warps_k {warps.warps_k} at m {problem.m}"
        )
    if problem.n % (16 * warps.tiles_n):
        return f"n must be a multiple of {16 * warps.tiles_n}: {problem.n} is none"
    steps = problem.k // TILE_K
    if warps.warps_k * warps.split_k > max(4, steps):
        return f"fewer warps do: warps_k {warps.warps_k} x split_k {warps.split_k} > {steps} steps"
    return None


def int4pack_fits(problem: Problem, parameters: None, gpu: Gpu | None) -> str | None:
    """Why torch's product of this packing can't do it, or None when it can."""
    del parameters, gpu
    if problem.dtype != "bfloat16":
        return f"_weight_int4pack_mm knows bfloat16 alone, not {problem.dtype}"
    if problem.granularity == "channel":
        return "_weight_int4pack_mm knows groups of 32 to 256 weights, not a channel"
    return whole_tiles(problem)


kernel = Kernel(
    problem=Problem,
    size=("m", "n", "k"),
    work=work,
    tolerance=tolerance,
    headline="gbps",
    arguments=("granularity",),
    interpreted=interpreted,
    largest=1.0,
    providers=(
        Provider("torch", "torch.py:dense", reference="dense.py"),
        Provider("torch_int4pack", "torch.py:int4pack", None, int4pack_fits, devices=("cuda",)),
        Provider("triton_gemm", "triton.py:gemm", Tiles, tiles_fit),
        Provider("triton_split_k", "triton.py:split", Split, split_fits),
        Provider("triton_gemv", "triton_gemv.py:gemv", Rows, rows_fit),
        Provider("triton_dequantise", "triton_dequantise.py:dequantise", Threads),
        Provider("cuda", "cuda.py:cuda", Warps, warps_fit, extension="cuda.cu", needs="sm_80"),
    ),
)
