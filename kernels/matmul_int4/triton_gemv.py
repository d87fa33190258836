"""The four-bit product of one row of x in Triton, without tensor cores: several rows of w per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .checks import as_pairs, checked
from .triton_weights import pairs_at, scale_and_zero, weight, words_at


@triton.jit  # type: ignore[untyped-decorator]
def _gemv(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    x: tl.tensor,
    packed: tl.tensor,
    scales: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN: tl.constexpr,
    BFLOAT16: tl.constexpr,
) -> None:
    """A program multiplies one row of x with BLOCK_N rows of w, the weights of a word one after the other.
    EVEN: no block reaches past the end of n or k."""
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    word = tl.arange(0, BLOCK_K // 8)[None, :]
    # The first column of a word's weights: word 4 t + p of a tile begins at the tile's column 32 p + 2 t.
    first = word // 16 * 128 + word % 4 * 32 + word % 16 // 4 * 2
    tiles_k = tl.cdiv(k, 128)
    total = tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32)
    for start in range(0, k, BLOCK_K):
        words_from = words_at(packed, column, start, tiles_k, BLOCK_K)
        pairs_from, group = pairs_at(scales, column, start, n, BLOCK_K, GROUP)
        if EVEN:
            words = tl.load(words_from)
            pairs = tl.load(pairs_from)
        else:
            words = tl.load(words_from, mask=(column < n) & (start + word // 16 * 128 < k), other=0)
            pairs = tl.load(pairs_from, mask=(column < n) & (group * GROUP < k), other=0)
        scale, zero = scale_and_zero(pairs, BFLOAT16)
        for place in tl.static_range(8):
            # The weight at bits 4 (4 b + 2 h + e) belongs to column 16 h + 8 e + b after the word's first.
            depth = start + first + place // 2 % 2 * 16 + place % 2 * 8 + place // 4
            if EVEN:
                total += weight(words, scale, zero, place) * tl.load(x + row * k + depth).to(tl.float32)
            else:
                of_x = tl.load(x + row * k + depth, mask=depth < k, other=0.0).to(tl.float32)
                total += tl.where(depth < k, weight(words, scale, zero, place) * of_x, 0.0)
    result = tl.sum(total, axis=1, keep_dims=True).to(out.dtype.element_ty)
    tl.store(out + row * n + column, result, mask=column < n)


def gemv(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    granularity: str,
    block_n: int,
    block_k: int,
    num_warps: int,
) -> torch.Tensor:
    """Return the product, one program per ``block_n`` outputs of a row. Raises ValueError for inputs that
    don't fit together and for an unsupported dtype."""
    x, packed, scales, group = checked(x, packed, scales_and_zeros, granularity)
    (m, k), n = x.shape, scales.shape[1]
    out = x.new_empty((m, n))
    if out.numel() > 0:
        _gemv[(triton.cdiv(n, block_n), m)](
            out,
            x,
            packed,
            as_pairs(scales),
            n,
            k,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            GROUP=group,
            EVEN=n % block_n == 0 and k % block_k == 0,
            BFLOAT16=x.dtype == torch.bfloat16,
            num_warps=num_warps,
        )
    return out
