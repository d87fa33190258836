"""The four-bit product by Triton and torch: dequantise the weights into memory, then multiply in 16 bits.

This is for many rows of x, where the traffic of the weights takes little time beside the product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .checks import as_pairs, checked
from .torch import product
from .triton_weights import pairs_at, scale_and_zero, weights, words_at

BLOCK_N = 16
BLOCK_K = 256


@triton.jit  # type: ignore[untyped-decorator]
def _dequantise(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    w: tl.tensor,
    packed: tl.tensor,
    scales: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    BFLOAT16: tl.constexpr,
) -> None:
    """A program dequantises a tile of w, n by k."""
    column = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    start = tl.program_id(0) * BLOCK_K
    word = tl.arange(0, BLOCK_K // 8)[None, :]
    pairs_from, group = pairs_at(scales, column, start, n, BLOCK_K, GROUP)
    inside = (column < n) & (start + word // 16 * 128 < k)
    words = tl.load(words_at(packed, column, start, tl.cdiv(k, 128), BLOCK_K), mask=inside, other=0)
    pairs = tl.load(pairs_from, mask=(column < n) & (group * GROUP < k), other=0)
    scale, zero = scale_and_zero(pairs, BFLOAT16)
    depth = start + tl.arange(0, BLOCK_K)[None, :]
    of_w = weights(words, scale, zero, BLOCK_N, BLOCK_K).to(w.dtype.element_ty)
    tl.store(w + column * k + depth, of_w, mask=(column < n) & (depth < k))


def dequantise(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str, num_warps: int
) -> torch.Tensor:
    """Return the product, by two launches.

    Raises ValueError for inputs that don't fit together and for an unsupported dtype.
    """
    x, packed, scales, group = checked(x, packed, scales_and_zeros, granularity)
    k, n = x.shape[1], scales.shape[1]
    w = x.new_empty((n, k))
    if w.numel() > 0:
        _dequantise[(triton.cdiv(k, BLOCK_K), triton.cdiv(n, BLOCK_N))](
            w,
            packed,
            as_pairs(scales),
            n,
            k,
            BLOCK_N=BLOCK_N,
            BLOCK_K=BLOCK_K,
            GROUP=group,
            BFLOAT16=x.dtype == torch.bfloat16,
            num_warps=num_warps,
        )
    return product(x, w)
