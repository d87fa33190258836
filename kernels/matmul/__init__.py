"""Matrix product: ``out = a @ b`` of a, m by k, and b, k by n, both row-major, standard normal.

``arithmetic`` says how float32 is multiplied: ``ieee`` keeps its 24 bits and runs on the float32 units,
``tf32`` lets the tensor cores round each input to 11. Of bfloat16 and float16 the tensor cores multiply
every bit, so that only ``ieee`` is sensible there and ``tf32`` is refused. Sums are kept in float32 and
rounded once.

Two operations a product, ``2 m n k`` in all; each input is read once and the output written once. A large
product is limited by its arithmetic. One of few rows (``decode``, a language model's step) is limited by
memory: it reads all of b for a handful of rows.

``triton_tiled`` takes its tiles in groups of ``group_m`` rows, so that neighbouring programs share tiles in
L2, after Triton's tutorial "Matrix Multiplication". ``cuda_naive`` and ``cuda_tiled`` are the two forms
that a first lecture on CUDA shows (Kirk and Hwu, "Programming Massively Parallel Processors", chapters 3
and 5). What cuBLAS chooses depends on the environment too: on the workspace that
``CUBLAS_WORKSPACE_CONFIG`` allows.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kernels.contract import EPSILON, ITEM_BYTES, Gpu, Kernel, Provider, Tolerance, Work, bytes_of, one_of
from kernels.threads import numba_fits


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A product of an m by k matrix and a k by n one."""

    m: int
    n: int
    k: int
    dtype: str = one_of("bfloat16", "float16", "float32")
    arithmetic: str = one_of("ieee", "tf32")

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of a and of b."""
        return (self.m, self.k), (self.k, self.n)


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """How a Triton program takes its block_m by block_n tile of the output, block_k products a step."""

    block_m: int = one_of(16, 32, 64, 128, 256, default=128, unit="")
    block_n: int = one_of(16, 32, 64, 128, 256, default=128, unit="")
    block_k: int = one_of(32, 64, 128, default=64, unit="")
    group_m: int = one_of(1, 4, 8, default=8, unit="g")
    num_warps: int = one_of(4, 8, default=8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=3, unit="s")


@dataclass(frozen=True, kw_only=True)
class Square:
    """The side of the square tiles that a block of ``tile * tile`` threads keeps in shared memory."""

    tile: int = one_of(16, 32, default=32, unit="")


MAX_ACCUMULATORS = 128
"""Most float32 sums of a tile that a thread of a Triton program keeps, half of the registers it can have."""

MAX_UNROLLED = 4096
"""Most multiplications that a thread of a Triton program does in a step without tensor cores, where Triton
writes out each: with so many it compiles for up to 5 seconds, where tiles for tensor cores take less than
one."""

MOST_INTERPRETED = 160
"""The largest dimension that Triton's interpreter is given: three tiles of 64, the last of them in part."""

TF32_EPSILON = 2.0**-10
"""The distance from 1 to the next number of TF32."""


def work(problem: Problem) -> Work:
    """Both inputs read once, the output written once, and a multiplication and an addition for each
    product."""
    moved = bytes_of(problem.dtype, *problem.shapes, (problem.m, problem.n))
    arithmetic = "tf32" if problem.arithmetic == "tf32" else problem.dtype
    return Work(moved, {arithmetic: 2 * problem.m * problem.n * problem.k})


def tolerance(problem: Problem) -> Tolerance:
    """How far an output may be from the reference, for inputs of about the size of standard normal ones.

    The inputs are as given, so only what comes after counts. An output is a sum of k products, about
    ``sqrt(k)`` large; below, eps is of the dtype named, and half of it the largest error of one rounding,
    whose root mean square is 0.2 eps. Limits are for the worst of 1e8 outputs, 6 standard deviations out.

    - *Sums in float32.* Added one after the other, k partial sums of size sqrt(i) are rounded, with a
      standard deviation of ``0.2 eps sqrt(1 + ... + k) = 0.15 eps k``: 0.9 eps k at the worst, doubled for
      the tensor cores, which cut where they should round. A few products are further from normal than their
      sum is, up to 25 each: 8 products more. Where one product outweighs the others, k roundings of it make
      ``0.2 eps sqrt(k)`` relative to the output: thus a relative part of ``eps sqrt(k)``.
    - *The output, rounded once*, is wrong by half an eps of its dtype relative to it; by a whole one where
      Triton's interpreter cuts float32 to bfloat16.
    - *Split k.* torch by default lets cuBLAS split k and round the parts' sums to a 16-bit output's dtype
      before it adds them: s parts of size sqrt(k / s) have together 0.2 eps sqrt(k), 1.2 eps sqrt(k) at the
      worst, and their own sums are rounded, too: ``2 eps sqrt(k)`` and another eps of the output.
    - *TF32* keeps 10 bits behind the leading one of an input; tensor cores that are given a float32 cut off
      the others. Each product then lacks up to 2 eps of TF32, 0.72 eps on average, which is relative to the
      output too; what varies about it is 0.32 eps a product, 1.9 eps sqrt(k) at the worst: thus ``2 eps``
      and ``2 eps sqrt(k)``, and 4 products more where they are few.

    Of a bfloat16 at k = 16384, the widest case, that is 2 + 0.016 |out|, where an output is about 128. A step
    of s products that is left out changes outputs by about sqrt(s), 4 and more, and an output that belongs
    elsewhere is wrong by about 1.4 sqrt(k).
    """
    root = math.sqrt(problem.k)
    single = EPSILON["float32"]
    rtol = single * (1 + root)
    atol = 2 * single * (problem.k + 8)
    if problem.arithmetic == "tf32":
        return Tolerance(rtol + 2 * TF32_EPSILON, atol + 2 * TF32_EPSILON * (root + 4))
    if problem.dtype != "float32":
        eps = EPSILON[problem.dtype]
        return Tolerance(rtol + 2 * eps, atol + 2 * eps * root)
    return Tolerance(rtol, atol)


def interpreted(problem: Problem) -> Problem:
    """The problem for Triton's interpreter, which is slow; what was odd stays odd."""
    m, n, k = (
        value if value <= MOST_INTERPRETED else MOST_INTERPRETED + value % 2
        for value in (problem.m, problem.n, problem.k)
    )
    return dataclasses.replace(problem, m=m, n=n, k=k)


def refused(dtype: str, arithmetic: str) -> str | None:
    """Why there is no such arithmetic of this dtype, or None when there is."""
    if arithmetic == "tf32" and dtype != "float32":
        return f"tf32 is an arithmetic of float32: {dtype} is multiplied in full without it"
    return None


def torch_fits(problem: Problem, parameters: None, gpu: Gpu | None) -> str | None:
    """Why torch has no such arithmetic, or None when it has. On a CPU it would silently do ``ieee``."""
    del parameters
    if gpu is None and problem.arithmetic == "tf32":
        return "tf32 is an arithmetic of a GPU's tensor cores"
    return refused(problem.dtype, problem.arithmetic)


def ieee_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Why a kernel without tensor cores has no such arithmetic, or None when it has."""
    del parameters, gpu
    if problem.arithmetic == "tf32":
        return "tf32 is done by tensor cores, which this kernel does not use"
    return None


def tiles_fit(problem: Problem, tiles: Tiles, gpu: Gpu | None) -> str | None:
    """Why a Triton program can't have such tiles, or why smaller ones do the same, or None when they fit."""
    if reason := refused(problem.dtype, problem.arithmetic):
        return reason
    # Hopper's tensor cores take 64 rows at once, however few there are.
    for dimension, smallest in (("m", 64), ("n", 16), ("k", 32)):
        extent, block = getattr(problem, dimension), getattr(tiles, f"block_{dimension}")
        if block > (enough := max(smallest, 1 << (extent - 1).bit_length())):
            return f"a smaller block does: block_{dimension} {block} > {enough} for {dimension} = {extent}"
    accumulators = _accumulators(tiles)
    if accumulators > MAX_ACCUMULATORS:
        return f"too much for the registers: {accumulators} sums a thread > {MAX_ACCUMULATORS}"
    unrolled = accumulators * tiles.block_k
    if problem.dtype == "float32" and problem.arithmetic == "ieee" and unrolled > MAX_UNROLLED:
        return f"too long to compile: {unrolled} multiplications a thread in a step > {MAX_UNROLLED}"
    needed = _step_elements(tiles) * ITEM_BYTES[problem.dtype] * tiles.num_stages
    if gpu is not None and needed > gpu.shared_memory:
        stages = f"{tiles.num_stages} stages"
        return f"too much for the shared memory: {needed} bytes in {stages} > {gpu.shared_memory}"
    return None


def _accumulators(tiles: Tiles) -> int:
    """Float32 sums that a thread keeps."""
    return tiles.block_m * tiles.block_n // (32 * tiles.num_warps)


def _step_elements(tiles: Tiles) -> int:
    """Elements of a and b that a step multiplies."""
    return (tiles.block_m + tiles.block_n) * tiles.block_k


def compile_weight(tiles: Tiles) -> float:
    """By which configurations take longer to compile than others: multiplications a thread in a step."""
    return _accumulators(tiles) * tiles.block_k


kernel = Kernel(
    problem=Problem,
    size=("m", "n", "k"),
    work=work,
    tolerance=tolerance,
    headline="tflops",
    arguments=("arithmetic",),
    interpreted=interpreted,
    largest=1.0,
    providers=(
        Provider("torch", "torch.py:matmul", fits=torch_fits),
        Provider("torch_compile", "torch_compiled.py:matmul", fits=torch_fits, compiled=True),
        Provider("triton_tiled", "triton.py:tiled", Tiles, tiles_fit, compile_weight=compile_weight),
        Provider("cuda_naive", "cuda.py:cuda_naive", None, ieee_fits, extension="cuda.cu"),
        Provider("cuda_tiled", "cuda.py:cuda_tiled", Square, ieee_fits, extension="cuda.cu"),
        Provider("cpp", "cpp.py:cpp", None, ieee_fits, extension="cpp.cpp"),
        Provider("numba", "numba.py:tiled", Square, numba_fits),
    ),
)
