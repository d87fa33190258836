"""Attention of few queries to many keys in Triton: the keys are split, and the parts are merged.

One query keeps only one multiprocessor busy, which can't read all keys at the rate of the memory. So several
programs each take a part of the keys. Each stores its weighted sum of values, scaled by its own largest
score, with that score and the sum of its probabilities. A second kernel rescales the parts and adds them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from .checks import check_attention
from .parameters import rows_of
from .triton import LOG2_E, attend, elements


@triton.jit  # type: ignore[untyped-decorator]
def _part(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    totals: tl.tensor,
    sums_of: tl.tensor,
    maxima_of: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    q_strides: tl.tuple,
    k_strides: tl.tuple,
    v_strides: tl.tuple,
    kv_heads: tl.tensor,
    group: tl.tensor,
    seq_q: tl.tensor,
    seq_k: tl.tensor,
    span: tl.tensor,
    scale: tl.tensor,
    SPLIT_K: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program attends all queries that share a key head to ``span`` keys of it.

    The queries make one tile of ROWS rows, so that the whole group reads keys and values once. EVEN_K: every
    block of keys is full.
    """
    part = tl.program_id(0) % SPLIT_K
    key_head_of_all = (tl.program_id(0) // SPLIT_K).to(tl.int64)
    entry = key_head_of_all // kv_heads
    key_head = key_head_of_all % kv_heads
    queries = group * seq_q

    row = tl.arange(0, ROWS)
    head = key_head * group + row // seq_q
    query = row % seq_q
    column = tl.arange(0, HEAD_DIM)
    key = tl.arange(0, BLOCK_N)
    q_from = elements(q, q_strides, entry, head[:, None], query[:, None], column[None, :])
    of_q = tl.load(q_from, mask=row[:, None] < queries, other=0.0)
    if WIDEN:
        of_q = of_q.to(tl.float32)
    keys = elements(k, k_strides, entry, key_head, key[None, :], column[:, None])
    values = elements(v, v_strides, entry, key_head, key[:, None], column[None, :])

    first = part * span
    last = tl.minimum(first + span, seq_k)
    total = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    maxima = tl.full([ROWS], -float("inf"), tl.float32)
    total, sums, maxima = attend(
        *(total, sums, maxima, of_q, keys, values, k_strides[2], v_strides[2], first, last, seq_k),
        *(query + (seq_k - seq_q), scale),
        BLOCK_N=BLOCK_N,
        CAUSAL=CAUSAL,
        MASKED=CAUSAL or not EVEN_K,
        WIDEN=WIDEN,
    )
    # Results are in the order of q's rows, (batch, heads, seq_q), with the parts of a row side by side.
    to = ((entry * kv_heads * group + head) * seq_q + query) * SPLIT_K + part
    tl.store(totals + to[:, None] * HEAD_DIM + column[None, :], total, mask=row[:, None] < queries)
    tl.store(sums_of + to, sums, mask=row < queries)
    tl.store(maxima_of + to, maxima, mask=row < queries)


@triton.jit  # type: ignore[untyped-decorator]
def _merge(
    out: tl.tensor,
    totals: tl.tensor,
    sums_of: tl.tensor,
    maxima_of: tl.tensor,
    SPLIT_K: tl.constexpr,
    HEAD_DIM: tl.constexpr,
) -> None:
    """A program merges the parts of one query, each rescaled to the largest score of all parts."""
    query = tl.program_id(0).to(tl.int64)
    part = query * SPLIT_K + tl.arange(0, SPLIT_K)
    column = tl.arange(0, HEAD_DIM)
    maxima = tl.load(maxima_of + part)
    weights = tl.math.exp2(maxima - tl.max(maxima, 0))
    total = tl.sum(tl.load(totals + part[:, None] * HEAD_DIM + column[None, :]) * weights[:, None], 0)
    result = total / tl.sum(tl.load(sums_of + part) * weights, 0)
    tl.store(out + query * HEAD_DIM + column, result.to(out.dtype.element_ty))


def split_k(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    split_k: int,
    block_n: int,
    num_warps: int,
    num_stages: int,
) -> torch.Tensor:
    """Return attention with the keys in ``split_k`` parts, ``block_n`` keys per step. Raises ValueError for
    queries, keys and values that don't fit together."""
    check_attention(q, k, v, causal)
    batch, heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    group = heads // kv_heads
    out = q.new_empty(q.shape)
    if out.numel() == 0:
        return out
    # A part has whole blocks; the last part may have fewer.
    span = triton.cdiv(triton.cdiv(seq_k, split_k), block_n) * block_n
    totals = q.new_empty((batch * heads * seq_q, split_k, head_dim), dtype=torch.float32)
    sums = q.new_empty((batch * heads * seq_q, split_k), dtype=torch.float32)
    maxima = q.new_empty((batch * heads * seq_q, split_k), dtype=torch.float32)
    _part[launch_grid(batch * kv_heads * split_k)](
        *(totals, sums, maxima, q, k, v, q.stride(), k.stride(), v.stride()),
        *(kv_heads, group, seq_q, seq_k, span, LOG2_E.value / math.sqrt(head_dim)),
        SPLIT_K=split_k,
        ROWS=rows_of(group * seq_q),
        HEAD_DIM=head_dim,
        BLOCK_N=block_n,
        CAUSAL=causal,
        EVEN_K=seq_k % block_n == 0,
        WIDEN=not isinstance(_part, triton.JITFunction),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    _merge[launch_grid(batch * heads * seq_q)](
        out, totals, sums, maxima, SPLIT_K=split_k, HEAD_DIM=head_dim, num_warps=num_warps
    )
    return out
