"""Matrix product with 2:4 sparse weights: ``out = x @ w.T`` of x, m by k, and w, n by k, of whose every four
neighbours in a row two are kept.

``values`` are those that are kept, n by k / 2, in their rows' order. ``metadata`` says which: 4 bits for four
neighbours, the place of the first kept one in the two lower, of the second in the two upper. They lie as
``mma.sp.m16n8k32`` wants them of a warp that loads 16 bytes of values a lane: for 16 rows and 64 columns a
word a lane, ``metadata[row // 16, column // 64, 4 * (row % 8) + f]`` with ``f = column % 16 // 4``, in its
lower half for the first eight rows, at bits ``4 * (column % 64 // 16)`` of it. What k lacks to a multiple of
64 is filled up.

Least work is that of the sparse product: half of the multiplications, 2 bytes of values and half a byte of
metadata for four weights, 9/16 of the dense weights. A product of few rows is limited by these bytes, a large
one by the tensor cores, which skip what is not kept.

``torch`` is the dense product of the same weights. ``torch_cusparselt`` is torch's semi-structured product,
whose ``alg_id`` is cuSPARSELt's choice of a kernel. Both take their weights in a form of their own, made
before any call, as for inference. ``cuda`` is written here by ``mma.sp``, for few rows. ``triton_gemm`` reads
the sparse weights and multiplies dense ones.

The pattern and its instruction: Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021; PTX ISA,
"mma.sp".
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kernels.contract import EPSILON, Gpu, Kernel, Provider, Tolerance, Work, bytes_of, one_of

TILE_N = 16
"""Rows of w in a tile of the metadata."""

TILE_K = 64
"""Columns of w in a tile of the metadata."""


def up(value: int, multiple: int) -> int:
    """The least multiple from a value on."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A product of an m by k matrix and the transpose of a sparse n by k one."""

    m: int
    n: int
    k: int
    dtype: str = one_of("bfloat16", "float16")

    @property
    def values_shape(self) -> tuple[int, int]:
        """Of the weights that are kept."""
        return self.n, up(self.k, TILE_K) // 2

    @property
    def metadata_shape(self) -> tuple[int, int, int]:
        """Of the words that say which they are."""
        return up(self.n, TILE_N) // TILE_N, up(self.k, TILE_K) // TILE_K, 32


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Which of its kernels cuSPARSELt takes. Which numbers there are depends on the problem."""

    alg_id: int = one_of(*range(10))


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """A Triton program's tile of the output, block_k products a step."""

    block_m: int = one_of(16, 32, 64, 128, default=16, unit="")
    block_n: int = one_of(32, 64, 128, default=64, unit="")
    block_k: int = one_of(64, 128, default=128, unit="")
    num_warps: int = one_of(4, 8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=3, unit="s")


@dataclass(frozen=True, kw_only=True)
class Warps:
    """Warps of a CUDA block that take turns along k, and blocks that share k."""

    warps_k: int = one_of(4, 8, 16, default=8, unit="w")
    split_k: int = one_of(1, 2, 4, unit="k")


MOST_ROWS = 32
"""Rows of x that a CUDA block keeps the sums of."""

FEW_ROWS = 16
"""Rows of x up to which a CUDA block has any number of warps."""

MOST_INTERPRETED = 72
"""The largest dimension that Triton's interpreter is given: tiles of 16 to 64, the last in part."""


def work(problem: Problem) -> Work:
    """Each input read once, the output written once, a multiplication and an addition for each product with a
    weight that is kept."""
    moved = bytes_of(problem.dtype, (problem.m, problem.k), (problem.m, problem.n), problem.values_shape)
    moved += bytes_of("int32", problem.metadata_shape)
    return Work(moved, {problem.dtype: problem.m * problem.n * problem.k})


def tolerance(problem: Problem) -> Tolerance:
    """How far an output may be from the reference, for inputs of about the size of standard normal ones.

    An output is a sum of k / 2 products, about ``sqrt(k / 2)`` large. Below, eps is the dtype's. Limits are
    for the worst of 1e8 outputs, 6 standard deviations out.

    - *Sums in float32*: 2 eps of float32 for each of k / 2 and 8 products, and ``eps sqrt(k)`` of the output.
    - *Parts rounded to the dtype* before they are added, as libraries may: ``1.2 eps sqrt(k / 2)``, and an
      eps of the output.
    - *The output, rounded once*: half an eps of it.

    At k = 8192 in bfloat16 that is 1 + 0.016 |out|. Two weights of a row that changed places are wrong by
    about 2.4, a tile of 64 columns left out by 5.7.
    """
    eps, single = EPSILON[problem.dtype], EPSILON["float32"]
    products = problem.k / 2
    atol = 2 * eps * math.sqrt(products + 8) + 2 * single * (products + 8)
    return Tolerance(2 * eps + single * math.sqrt(problem.k), atol)


def interpreted(problem: Problem) -> Problem:
    """The problem for Triton's interpreter, which is slow; what was odd stays odd."""
    small = {
        name: value if (value := getattr(problem, name)) <= MOST_INTERPRETED else MOST_INTERPRETED + value % 2
        for name in ("m", "n", "k")
    }
    return dataclasses.replace(problem, **small)


def tiles_fit(problem: Problem, tiles: Tiles, gpu: Gpu | None) -> str | None:
    """Why a Triton program can't have such tiles, or why smaller ones do the same, or None when they fit."""
    for name, smallest in (("m", 16), ("n", 64), ("k", 128)):
        extent, block = getattr(problem, name), getattr(tiles, f"block_{name}")
        if block > (enough := max(smallest, 1 << (extent - 1).bit_length())):
            return f"a smaller block does: block_{name} {block} > {enough} for {name} = {extent}"
    # In each stage x, half of w in 16 bits, and a word of metadata for each four of it.
    needed = tiles.num_stages * tiles.block_k * (2 * tiles.block_m + 2 * tiles.block_n)
    if gpu is not None and needed > gpu.shared_memory:
        return f"too much for the shared memory: {needed} bytes > {gpu.shared_memory}"
    return None


def cusparselt_fits(problem: Problem, parameters: Algorithm, gpu: Gpu | None) -> str | None:
    """Why cuSPARSELt can't do it, or None when it can."""
    del parameters, gpu
    for name in ("m", "n", "k"):
        if (value := getattr(problem, name)) % 16 or (name != "m" and value % 32):
            return f"cuSPARSELt takes multiples of 16 for m and of 32 for n and k: {name} is {value}"
    return None


def warps_fit(problem: Problem, warps: Warps, gpu: Gpu | None) -> str | None:
    """Why a CUDA block can't take it so, or None when it can."""
    del gpu
    for name, multiple in (("n", TILE_N), ("k", 2 * TILE_K)):
        if (value := getattr(problem, name)) % multiple:
            return f"{name} must be a multiple of {multiple}: {value} is none"
    if problem.m > MOST_ROWS:
        return f"keeps the sums of all rows of x in registers: m {problem.m} > {MOST_ROWS}"
    if problem.m > FEW_ROWS and warps.warps_k > 8:
        return f"too much for the registers: warps_k {warps.warps_k} at m {problem.m}"
    steps = problem.k // (2 * TILE_K)
    if warps.warps_k * warps.split_k > max(4, steps):
        return f"fewer warps do: warps_k {warps.warps_k} x split_k {warps.split_k} > {steps} steps"
    return None


kernel = Kernel(
    problem=Problem,
    size=("m", "n", "k"),
    work=work,
    tolerance=tolerance,
    headline="tflops",
    interpreted=interpreted,
    largest=1.0,
    providers=(
        Provider("torch", "torch.py:dense", reference="dense.py"),
        Provider(
            "torch_cusparselt",
            "torch.py:cusparselt",
            Algorithm,
            cusparselt_fits,
            devices=("cuda",),
            needs="sm_80",
            reference="cusparselt.py",
        ),
        Provider("triton_gemm", "triton.py:gemm", Tiles, tiles_fit),
        Provider("cuda", "cuda.py:cuda", Warps, warps_fit, extension="cuda.cu", needs="sm_80"),
    ),
)
