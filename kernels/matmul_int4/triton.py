"""The four-bit product in Triton with tensor cores: one program per tile of the output, or per part of it.

A tile belongs to the output's transpose. Weights are the first operand, which the tensor cores take from
registers, where the weights are dequantised. x is the second operand, from shared memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from ..matmul.triton import grouped
from .checks import as_pairs, checked
from .problem import TILE_K
from .triton_weights import pairs_at, scale_and_zero, weights, words_at

GROUP_M = 8
"""Rows of tiles per group: concurrent programs share tiles of x and w in L2."""

REDUCED = 1024
"""Elements of the output per program that adds the parts."""


@triton.jit  # type: ignore[untyped-decorator]
def _gemm(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    x: tl.tensor,
    packed: tl.tensor,
    scales: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    BFLOAT16: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program computes the products of one tile, or of its part of the steps, in float32.

    ``out`` is (SPLIT_K, m, n).

    EVEN_M, EVEN_N and EVEN_K: no tile reaches past the end in that dimension. WIDEN is for Triton's
    interpreter, whose dot reads a bfloat16's bits as an integer.
    """
    tile_m, tile_n = grouped(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    part = tl.program_id(1)
    steps = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLIT_K)
    first = part * steps * BLOCK_K
    last = min(k, first + steps * BLOCK_K)
    row = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    column = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    depth = tl.arange(0, BLOCK_K)
    tiles_k = tl.cdiv(k, 128)

    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in range(first, last, BLOCK_K):
        words_from = words_at(packed, column, start, tiles_k, BLOCK_K)
        pairs_from, group = pairs_at(scales, column, start, n, BLOCK_K, GROUP)
        x_from = x + row * k + (start + depth)[:, None]
        if EVEN_N and EVEN_K:
            words = tl.load(words_from)
            pairs = tl.load(pairs_from)
        else:
            word = tl.arange(0, BLOCK_K // 8)[None, :]
            inside = (column < n) & (start + word // 16 * 128 < k)
            words = tl.load(words_from, mask=inside, other=0)
            pairs = tl.load(pairs_from, mask=(column < n) & (group * GROUP < k), other=0)
        if EVEN_M and EVEN_K:
            of_x = tl.load(x_from)
        elif EVEN_K:
            of_x = tl.load(x_from, mask=row < m, other=0.0)
        else:
            of_x = tl.load(x_from, mask=(row < m) & ((start + depth)[:, None] < k), other=0.0)
        scale, zero = scale_and_zero(pairs, BFLOAT16)
        of_w = weights(words, scale, zero, BLOCK_N, BLOCK_K)
        if not EVEN_K:
            # Weights past the end are 0, whatever their scale.
            of_w = tl.where((start + depth)[None, :] < k, of_w, 0.0)
        of_w = of_w.to(x.dtype.element_ty)
        if WIDEN:
            of_w = of_w.to(tl.float32)
            of_x = of_x.to(tl.float32)
        total = tl.dot(of_w, of_x, total)

    to = out + (part.to(tl.int64) * m + row) * n + column
    result = total.to(out.dtype.element_ty)
    if EVEN_M and EVEN_N:
        tl.store(to, result)
    else:
        tl.store(to, result, mask=(row < m) & (column < n))


@triton.jit  # type: ignore[untyped-decorator]
def _reduce(
    out: tl.tensor, parts: tl.tensor, elements: tl.tensor, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """A program adds BLOCK elements of all parts, in order, so that the sum is the same each time."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(SPLIT_K):
        total += tl.load(parts + part * elements + place, mask=inside, other=0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


def gemm(  # noqa: PLR0913, PLR0917  # inputs and parameters
    x: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    granularity: str,
    block_m: int,
    block_n: int,
    block_k: int,
    num_warps: int,
    num_stages: int,
) -> torch.Tensor:
    """Return the product, one program per ``block_m`` by ``block_n`` tile.

    Raises ValueError for inputs that don't fit together and for an unsupported dtype.
    """
    return split(
        x, packed, scales_and_zeros, granularity, block_m, block_n, block_k, num_warps, num_stages, 1
    )


def split(  # noqa: PLR0913, PLR0917  # inputs and parameters
    x: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    granularity: str,
    block_m: int,
    block_n: int,
    block_k: int,
    num_warps: int,
    num_stages: int,
    split_k: int,
) -> torch.Tensor:
    """Return the product, ``split_k`` programs per tile; a second launch adds their float32 sums.

    Raises as ``gemm`` does.
    """
    x, packed, scales, group = checked(x, packed, scales_and_zeros, granularity)
    (m, k), n = x.shape, scales.shape[1]
    out = x.new_empty((m, n))
    if out.numel() == 0:
        return out
    parts = out if split_k == 1 else x.new_empty((split_k, m, n), dtype=torch.float32)
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    _gemm[(*launch_grid(tiles), split_k)](
        parts,
        x,
        packed,
        as_pairs(scales),
        m,
        n,
        k,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=group,
        GROUP_M=GROUP_M,
        SPLIT_K=split_k,
        EVEN_M=m % block_m == 0,
        EVEN_N=n % block_n == 0,
        EVEN_K=k % max(block_k, TILE_K) == 0,
        BFLOAT16=x.dtype == torch.bfloat16,
        WIDEN=not isinstance(_gemm, triton.JITFunction),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    if split_k > 1:
        grid = launch_grid(triton.cdiv(m * n, REDUCED))
        _reduce[grid](out, parts, m * n, SPLIT_K=split_k, BLOCK=REDUCED, num_warps=4)
    return out
