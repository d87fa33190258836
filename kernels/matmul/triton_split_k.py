"""The matrix product in Triton, with several programs sharing the products of a tile (split-K).

A product of few tiles and a long k leaves multiprocessors without a tile. Here ``split_k`` programs each take
a part of k, and their sums are added in one of two ways. With atomics each program adds its sum to the
output, which must be float32 and 0 before; the last bits then differ from call to call. With a workspace each
program stores its own sum, and a second kernel adds the sums in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from .checks import check_product
from .triton import (
    empty_product,
    imprecise_sums,
    is_interpreted,
    operands,
    precision,
    tile_of,
)

REDUCE_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def part_of(part: tl.tensor, k: tl.tensor, SPLIT_K: tl.constexpr, BLOCK_K: tl.constexpr) -> tl.tensor:
    """Return the bounds of a part of k, in whole steps. The last parts may have fewer steps, or none."""
    steps = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLIT_K)
    begin = part * steps * BLOCK_K
    return begin, min(begin + steps * BLOCK_K, k)


@triton.jit  # type: ignore[untyped-decorator]
def _split(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    sums: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    scale_a: tl.tensor,
    scale_b: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    a_row: tl.tensor,
    a_column: tl.tensor,
    b_row: tl.tensor,
    b_column: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    ATOMIC: tl.constexpr,
    EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    ARITHMETIC: tl.constexpr,
    IMPRECISE: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program computes one part of the products of one tile. It adds the sums to ``sums``, an m by n
    matrix, or stores them in its own m by n matrix of ``sums``."""
    tiles_m = tl.cdiv(m, BLOCK_M)
    # Tiles go down the rows first: concurrent programs read the same columns of b, the larger matrix.
    tile_m, tile_n = tl.program_id(0) % tiles_m, tl.program_id(0) // tiles_m
    part = tl.program_id(1)
    begin, end = part_of(part, k, SPLIT_K, BLOCK_K)
    row = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tile_of(
        a,
        b,
        m,
        n,
        end,
        begin,
        row,
        column,
        a_row,
        a_column,
        b_row,
        b_column,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        EVEN_M,
        EVEN_N,
        EVEN_K,
        ARITHMETIC,
        IMPRECISE,
        WIDEN,
    )
    inside = (row < m) & (column < n)
    if ATOMIC:
        if scale_a is not None:
            total *= tl.load(scale_a) * tl.load(scale_b)
        tl.atomic_add(sums + row * n + column, total, mask=inside, sem="relaxed")
    else:
        tl.store(sums + part.to(tl.int64) * m * n + row * n + column, total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _reduce(
    out: tl.tensor,
    parts: tl.tensor,
    scale_a: tl.tensor,
    scale_b: tl.tensor,
    elements: tl.int64,
    SPLIT_K: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """A program adds BLOCK_SIZE elements of all parts, in order, and rounds each sum once."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = offset < elements
    total = tl.zeros([BLOCK_SIZE], tl.float32)
    for part in tl.static_range(SPLIT_K):
        total += tl.load(parts + part * elements + offset, mask=inside, other=0.0)
    if scale_a is not None:
        total *= tl.load(scale_a) * tl.load(scale_b)
    tl.store(out + offset, total.to(out.dtype.element_ty), mask=inside)


def reduced(
    out: torch.Tensor,
    parts: torch.Tensor,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write the sum of ``parts``, times the scales, to ``out``, and return it."""
    _reduce[launch_grid(triton.cdiv(out.numel(), REDUCE_BLOCK))](
        out,
        parts,
        scale_a,
        scale_b,
        out.numel(),
        SPLIT_K=parts.shape[0],
        BLOCK_SIZE=REDUCE_BLOCK,
        num_warps=4,
    )
    return out


def split_k(  # noqa: PLR0913  # inputs and parameters
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    *,
    arithmetic: str,
    block_m: int,
    block_n: int,
    block_k: int,
    split_k: int,
    num_warps: int,
    num_stages: int,
    reduction: str,
) -> torch.Tensor:
    """Return the product, ``split_k`` programs per tile. Raises ValueError unless the inputs are an (m, k)
    and a (k, n) matrix, and for an arithmetic that their dtype does not have."""
    check_product(a, b, arithmetic, scale_a, scale_b)
    (m, k), n = a.shape, b.shape[1]
    out = empty_product(a, b)
    a, b = operands(_split, a, b)
    if out.numel() == 0:
        return out
    if reduction == "workspace":
        sums = a.new_empty((split_k, m, n), dtype=torch.float32)
    else:
        sums = (out if out.dtype == torch.float32 else a.new_empty((m, n), dtype=torch.float32)).zero_()
    (tiles,) = launch_grid(triton.cdiv(m, block_m) * triton.cdiv(n, block_n))
    _split[tiles, split_k](
        sums,
        a,
        b,
        scale_a,
        scale_b,
        m,
        n,
        k,
        *a.stride(),
        *b.stride(),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        SPLIT_K=split_k,
        ATOMIC=reduction == "atomic",
        EVEN_M=m % block_m == 0,
        EVEN_N=n % block_n == 0,
        EVEN_K=k % block_k == 0,
        ARITHMETIC=precision(arithmetic),
        IMPRECISE=imprecise_sums(a, arithmetic, block_k),
        WIDEN=is_interpreted(_split),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    if reduction == "workspace":
        return reduced(out, sums, scale_a, scale_b)
    return sums if sums is out else out.copy_(sums)
