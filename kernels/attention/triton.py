"""FlashAttention in Triton: one program for each block of queries, without scores in device memory.

It runs on the current CUDA device, takes tensors with any strides and returns a contiguous tensor.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from .checks import check_attention

LOG2_E = tl.constexpr(math.log2(math.e))
"""exp(x) is exp2(x * LOG2_E); the GPU has an instruction for exp2."""


@triton.jit  # type: ignore[untyped-decorator]
def elements(
    x: tl.tensor,
    strides: tl.tuple,
    entry: tl.tensor,
    head: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
) -> tl.tensor:
    """Return pointers to these rows and columns of a head. Offsets have 64 bits: a tensor may have more than
    2**31 elements."""
    of_head = x + entry.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    return of_head + row.to(tl.int64) * strides[2] + column.to(tl.int64) * strides[3]


@triton.jit  # type: ignore[untyped-decorator]
def attend(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    total: tl.tensor,
    sums: tl.tensor,
    maxima: tl.tensor,
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_row: tl.tensor,
    value_row: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    seq_k: tl.tensor,
    positions: tl.tensor,
    scale: tl.tensor,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    WIDEN: tl.constexpr,
) -> tl.tensor:
    """Compute online softmax over the keys ``first`` to ``last``, BLOCK_N per step: a step's scores are
    scaled by the largest score so far, and the earlier sums are rescaled.

    Scores are in units of log2: ``scale`` contains log2(e). ``keys`` and ``values`` point to the first
    BLOCK_N keys and values of the head. MASKED: a step may reach past the last key, or, with CAUSAL, past a
    query's position. Without MASKED every query sees every key of the steps. Returns the sums of the values
    and of the probabilities, and the largest scores.
    """
    column = tl.arange(0, BLOCK_N)
    for start in tl.range(first, last, BLOCK_N):
        # 64 bits: a key may be further than 2**31 elements from the first.
        k_from = keys + tl.cast(start, tl.int64) * key_row
        v_from = values + tl.cast(start, tl.int64) * value_row
        inside = start + column < seq_k
        k = tl.load(k_from, mask=inside[None, :], other=0.0) if MASKED else tl.load(k_from)
        if WIDEN:
            k = k.to(tl.float32)
        scores = tl.dot(q, k)
        if MASKED:
            seen = inside[None, :]
            if CAUSAL:
                seen = seen & (start + column[None, :] <= positions[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        largest = tl.maximum(maxima, tl.max(scores, 1) * scale)
        # With split keys, a query may see no key of a part, and its largest score is -inf.
        from_largest = tl.where(largest == -float("inf"), 0.0, largest) if MASKED else largest
        p = tl.math.exp2(scores * scale - from_largest[:, None])
        shrink = tl.math.exp2(maxima - from_largest)
        sums = sums * shrink + tl.sum(p, 1)
        total = total * shrink[:, None]
        v = tl.load(v_from, mask=inside[:, None], other=0.0) if MASKED else tl.load(v_from)
        p = p.to(v.dtype)
        if WIDEN:
            p = p.to(tl.float32)
            v = v.to(tl.float32)
        total = tl.dot(p, v, total)
        maxima = largest
    return total, sums, maxima


@triton.jit  # type: ignore[untyped-decorator]
def _flash(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    q_strides: tl.tuple,
    k_strides: tl.tuple,
    v_strides: tl.tuple,
    heads: tl.tensor,
    group: tl.tensor,
    seq_q: tl.tensor,
    seq_k: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    EVEN_Q: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program attends BLOCK_M queries of one head to all keys that they see.

    The blocks of keys that all queries see come first, without a mask. The blocks on the diagonal, and a last
    block that is not full, follow with a mask. EVEN_Q: no block of queries reaches past the last query.
    EVEN_K: the same for keys. WIDEN is for Triton's interpreter, whose dot reads a bfloat16's bits as an
    integer.
    """
    blocks = tl.cdiv(seq_q, BLOCK_M)
    # Programs with neighbouring numbers share a head's keys in L2.
    head_of_all = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block  # blocks that see the most keys take longest and begin first
    entry = head_of_all // heads
    head = head_of_all % heads

    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, HEAD_DIM)
    key = tl.arange(0, BLOCK_N)
    key_head = head // group
    q_from = elements(q, q_strides, entry, head, row[:, None], column[None, :])
    keys = elements(k, k_strides, entry, key_head, key[None, :], column[:, None])
    values = elements(v, v_strides, entry, key_head, key[:, None], column[None, :])

    of_q = tl.load(q_from) if EVEN_Q else tl.load(q_from, mask=row[:, None] < seq_q, other=0.0)
    if WIDEN:
        of_q = of_q.to(tl.float32)

    positions = row + (seq_k - seq_q)
    end = seq_k
    full = seq_k // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = tl.minimum(seq_k, (block + 1) * BLOCK_M + seq_k - seq_q)
        full = tl.minimum(seq_k, block * BLOCK_M + seq_k - seq_q + 1) // BLOCK_N * BLOCK_N
    total = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    sums = tl.zeros([BLOCK_M], tl.float32)
    maxima = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total, sums, maxima = attend(
        *(
            total,
            sums,
            maxima,
            of_q,
            keys,
            values,
            k_strides[2],
            v_strides[2],
            0,
            full,
            seq_k,
            positions,
            scale,
        ),
        BLOCK_N=BLOCK_N,
        CAUSAL=CAUSAL,
        MASKED=False,
        WIDEN=WIDEN,
    )
    if CAUSAL or not EVEN_K:
        total, sums, maxima = attend(
            *(
                total,
                sums,
                maxima,
                of_q,
                keys,
                values,
                k_strides[2],
                v_strides[2],
                full,
                end,
                seq_k,
                positions,
                scale,
            ),
            BLOCK_N=BLOCK_N,
            CAUSAL=CAUSAL,
            MASKED=True,
            WIDEN=WIDEN,
        )

    result = (total / sums[:, None]).to(out.dtype.element_ty)
    to = out + (head_of_all * seq_q + row[:, None]) * HEAD_DIM + column[None, :]
    if EVEN_Q:
        tl.store(to, result)
    else:
        tl.store(to, result, mask=row[:, None] < seq_q)


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    block_m: int,
    block_n: int,
    num_warps: int,
    num_stages: int,
) -> torch.Tensor:
    """Return attention. A program has ``block_m`` queries of one head, and takes ``block_n`` keys per step.

    Raises ValueError for queries, keys and values that don't fit together.
    """
    check_attention(q, k, v, causal)
    batch, heads, seq_q, head_dim = q.shape
    seq_k = k.shape[2]
    out = q.new_empty(q.shape)
    if out.numel() > 0:
        _flash[launch_grid(triton.cdiv(seq_q, block_m) * batch * heads)](
            *(out, q, k, v, q.stride(), k.stride(), v.stride()),
            *(heads, heads // k.shape[1], seq_q, seq_k, LOG2_E.value / math.sqrt(head_dim)),
            HEAD_DIM=head_dim,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            CAUSAL=causal,
            EVEN_Q=seq_q % block_m == 0,
            EVEN_K=seq_k % block_n == 0,
            WIDEN=not isinstance(_flash, triton.JITFunction),
            num_warps=num_warps,
            num_stages=num_stages,
        )
    return out
