"""Attention's backward pass in Triton: two kernels that recompute the probabilities, without atomics.

It runs on the current CUDA device and returns contiguous tensors. Descriptors load blocks of tensors; on
Hopper TMA copies them, and their addresses take no registers.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from ..attention.checks import check_attention
from ..attention.descriptors import copied_if_needed, descriptor
from ..attention.triton import LOG2_E


@triton.jit  # type: ignore[untyped-decorator]
def _block(
    x: tl.tensor,
    entry: tl.tensor,
    head: tl.tensor,
    row: tl.tensor,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDEN: tl.constexpr,
) -> tl.tensor:
    """Load ROWS rows of a head, from ``row`` on; zeros past the last row. WIDEN is for Triton's interpreter,
    whose dot reads a bfloat16's bits as an integer."""
    loaded = x.load([entry, head, row, 0]).reshape(ROWS, HEAD_DIM)
    return loaded.to(tl.float32) if WIDEN else loaded


@triton.jit  # type: ignore[untyped-decorator]
def _narrow(x: tl.tensor, like: tl.tensor, WIDEN: tl.constexpr) -> tl.tensor:
    """Round to the dtype of ``like``, which the tensor cores take; WIDEN converts back to float32."""
    rounded = x.to(like.dtype)
    return rounded.to(tl.float32) if WIDEN else rounded


@triton.jit  # type: ignore[untyped-decorator]
def _delta(
    delta: tl.tensor,
    out: tl.tensor,
    d_out: tl.tensor,
    heads: tl.tensor,
    seq_q: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A program computes the row sums of ``out * d_out`` for one block of a head's rows."""
    blocks = tl.cdiv(seq_q, BLOCK)
    head_of_all = tl.program_id(0) // blocks
    entry, head = head_of_all // heads, head_of_all % heads
    first = tl.program_id(0) % blocks * BLOCK
    row = first + tl.arange(0, BLOCK)
    o = _block(out, entry, head, first, BLOCK, HEAD_DIM, True)
    given = _block(d_out, entry, head, first, BLOCK, HEAD_DIM, True)
    tl.store(delta + head_of_all.to(tl.int64) * seq_q + row, tl.sum(o * given, 1), mask=row < seq_q)


@triton.jit  # type: ignore[untyped-decorator]
def _queries_of_keys(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    dk: tl.tensor,
    dv: tl.tensor,
    of_k: tl.tensor,
    of_v: tl.tensor,
    q: tl.tensor,
    d_out: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    entry: tl.tensor,
    head: tl.tensor,
    key: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    seq_q: tl.tensor,
    offset: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    STEP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WIDEN: tl.constexpr,
) -> tl.tensor:
    """Add the contributions of a head's queries ``first`` to ``last`` to dk and dv of a block of keys.

    Scores are transposed, one row for each key, so that they are the first operand of both products. The
    probabilities of a query past the end are 0, because its lse is infinite. CAUSAL: some queries do not see
    all keys."""
    for start in tl.range(first, last, STEP):
        row = start + tl.arange(0, STEP)
        inside = row < seq_q
        of_q = _block(q, entry, head, start, STEP, HEAD_DIM, WIDEN)
        scores = tl.dot(of_k, tl.trans(of_q))
        of_lse = tl.load(lse + row, mask=inside, other=float("inf")) * LOG2_E
        p = tl.math.exp2(scores * scale - of_lse[None, :])
        if CAUSAL:
            p = tl.where(key[:, None] <= row[None, :] + offset, p, 0.0)
        given = _block(d_out, entry, head, start, STEP, HEAD_DIM, WIDEN)
        dv = tl.dot(_narrow(p, q, WIDEN), given, dv)
        dp = tl.dot(of_v, tl.trans(given))
        of_delta = tl.load(delta + row, mask=inside, other=0.0)
        ds = p * (dp - of_delta[None, :])
        dk = tl.dot(_narrow(ds, q, WIDEN), of_q, dk)
    return dk, dv


@triton.jit  # type: ignore[untyped-decorator]
def _of_keys(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    dk: tl.tensor,
    dv: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    d_out: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    seq_q: tl.tensor,
    seq_k: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    CAUSAL: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program computes dk and dv of BLOCK keys from the queries of all heads that share them, STEP at once.

    With CAUSAL most queries see the first keys. The programs of these keys have the smallest numbers in each
    head, and begin first.
    """
    blocks = tl.cdiv(seq_k, BLOCK)
    block = tl.program_id(0) % blocks
    head_of_all = tl.program_id(0) // blocks
    entry, key_head = head_of_all // kv_heads, head_of_all % kv_heads
    key = block * BLOCK + tl.arange(0, BLOCK)
    of_k = _block(k, entry, key_head, block * BLOCK, BLOCK, HEAD_DIM, WIDEN)
    of_v = _block(v, entry, key_head, block * BLOCK, BLOCK, HEAD_DIM, WIDEN)

    offset = seq_k - seq_q
    first = 0
    full = 0
    if CAUSAL:
        # The first step with a query that sees a key of the block; the first step whose queries see all keys.
        first = tl.maximum(block * BLOCK - offset, 0) // STEP * STEP
        full = tl.maximum(tl.cdiv((block + 1) * BLOCK - 1 - offset, STEP) * STEP, first)
        full = tl.minimum(full, tl.cdiv(seq_q, STEP) * STEP)
    sum_k = tl.zeros([BLOCK, HEAD_DIM], tl.float32)
    sum_v = tl.zeros([BLOCK, HEAD_DIM], tl.float32)
    for head in tl.range(key_head * group, (key_head + 1) * group):
        rows = (entry * kv_heads * group + head).to(tl.int64) * seq_q
        if CAUSAL:
            sum_k, sum_v = _queries_of_keys(
                *(sum_k, sum_v, of_k, of_v, q, d_out, lse + rows, delta + rows, entry, head, key),
                *(first, full, seq_q, offset, scale, HEAD_DIM, STEP, True, WIDEN),
            )
        sum_k, sum_v = _queries_of_keys(
            *(sum_k, sum_v, of_k, of_v, q, d_out, lse + rows, delta + rows, entry, head, key),
            *(full, seq_q, seq_q, offset, scale, HEAD_DIM, STEP, False, WIDEN),
        )
    # scale contains log2(e), and dk must not.
    sum_k = sum_k * (scale / LOG2_E)
    at = [entry, key_head, block * BLOCK, 0]
    dk.store(at, sum_k.to(dk.dtype).reshape(1, 1, BLOCK, HEAD_DIM))
    dv.store(at, sum_v.to(dv.dtype).reshape(1, 1, BLOCK, HEAD_DIM))


@triton.jit  # type: ignore[untyped-decorator]
def _keys_of_queries(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    dq: tl.tensor,
    of_q: tl.tensor,
    given: tl.tensor,
    of_lse: tl.tensor,
    of_delta: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    entry: tl.tensor,
    key_head: tl.tensor,
    positions: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    seq_k: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    STEP: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    WIDEN: tl.constexpr,
) -> tl.tensor:
    """Add the contributions of the keys ``first`` to ``last`` to dq of a block of queries. MASKED: there may
    be keys past the end, or, with CAUSAL, past a query's position."""
    for start in tl.range(first, last, STEP):
        of_k = _block(k, entry, key_head, start, STEP, HEAD_DIM, WIDEN)
        scores = tl.dot(of_q, tl.trans(of_k))
        p = tl.math.exp2(scores * scale - of_lse[:, None])
        if MASKED:
            key = start + tl.arange(0, STEP)[None, :]
            seen = key < seq_k
            if CAUSAL:
                seen = seen & (key <= positions[:, None])
            p = tl.where(seen, p, 0.0)
        of_v = _block(v, entry, key_head, start, STEP, HEAD_DIM, WIDEN)
        dp = tl.dot(given, tl.trans(of_v))
        ds = p * (dp - of_delta[:, None])
        dq = tl.dot(_narrow(ds, k, WIDEN), of_k, dq)
    return dq


@triton.jit  # type: ignore[untyped-decorator]
def _of_queries(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    dq: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    d_out: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    heads: tl.tensor,
    group: tl.tensor,
    seq_q: tl.tensor,
    seq_k: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    CAUSAL: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A program computes dq of BLOCK queries from the keys that they see, STEP at once. EVEN_K: no step
    reaches past the last key."""
    blocks = tl.cdiv(seq_q, BLOCK)
    head_of_all = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block
    entry, head = head_of_all // heads, head_of_all % heads
    key_head = head // group
    row = block * BLOCK + tl.arange(0, BLOCK)
    of_q = _block(q, entry, head, block * BLOCK, BLOCK, HEAD_DIM, WIDEN)
    given = _block(d_out, entry, head, block * BLOCK, BLOCK, HEAD_DIM, WIDEN)
    rows = head_of_all.to(tl.int64) * seq_q + row
    of_lse = tl.load(lse + rows, mask=row < seq_q, other=float("inf")) * LOG2_E
    of_delta = tl.load(delta + rows, mask=row < seq_q, other=0.0)

    positions = row + (seq_k - seq_q)
    end = seq_k
    full = seq_k // STEP * STEP
    if CAUSAL:
        end = tl.minimum(seq_k, (block + 1) * BLOCK + seq_k - seq_q)
        full = tl.minimum(seq_k, block * BLOCK + seq_k - seq_q + 1) // STEP * STEP
    sums = tl.zeros([BLOCK, HEAD_DIM], tl.float32)
    sums = _keys_of_queries(
        *(sums, of_q, given, of_lse, of_delta, k, v, entry, key_head, positions, 0, full),
        *(seq_k, scale, HEAD_DIM, STEP, CAUSAL, False, WIDEN),
    )
    if CAUSAL or not EVEN_K:
        sums = _keys_of_queries(
            *(sums, of_q, given, of_lse, of_delta, k, v, entry, key_head, positions, full, end),
            *(seq_k, scale, HEAD_DIM, STEP, CAUSAL, True, WIDEN),
        )
    sums = sums * (scale / LOG2_E)
    dq.store([entry, head, block * BLOCK, 0], sums.to(dq.dtype).reshape(1, 1, BLOCK, HEAD_DIM))


def flash(  # noqa: PLR0913, PLR0917  # inputs and parameters
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
    block: int,
    block_step: int,
    num_warps: int,
    num_stages: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dq, dk and dv. A program takes ``block`` keys or queries of one head, and ``block_step`` queries
    or keys per step. Raises ValueError for tensors that don't fit together."""
    check_attention(q, k, v, causal)
    if out.shape != q.shape or d_out.shape != q.shape or lse.shape != q.shape[:3]:
        raise ValueError(
            "attention_backward needs out and d_out like q, lse of (batch, heads, seq_q), got shapes "
            f"{tuple(out.shape)}, {tuple(d_out.shape)} and {tuple(lse.shape)}"
        )
    batch, heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    if dq.numel() == 0:
        return dq, dk.zero_(), dv.zero_()
    q, k, v, out, d_out = (copied_if_needed(x) for x in (q, k, v, out, d_out))
    lse = lse.contiguous()
    delta = lse.new_empty(lse.shape)
    blocks_q, blocks_k = triton.cdiv(seq_q, block), triton.cdiv(seq_k, block)
    of_dq, of_q, of_given, of_out, of_dk, of_dv, of_k, of_v = (
        descriptor(x, block) for x in (dq, q, d_out, out, dk, dv, k, v)
    )
    q_step, given_step, k_step, v_step = (descriptor(x, block_step) for x in (q, d_out, k, v))
    launch = {"HEAD_DIM": head_dim, "BLOCK": block, "num_warps": num_warps, "num_stages": num_stages}
    _delta[launch_grid(blocks_q * batch * heads)](delta, of_out, of_given, heads, seq_q, **launch)
    launch |= {"STEP": block_step, "CAUSAL": causal, "WIDEN": not isinstance(_of_keys, triton.JITFunction)}
    group, scale = heads // kv_heads, LOG2_E.value / math.sqrt(head_dim)
    _of_keys[launch_grid(blocks_k * batch * kv_heads)](
        *(of_dk, of_dv, q_step, of_k, of_v, given_step, lse, delta),
        *(kv_heads, group, seq_q, seq_k, scale),
        **launch,
    )
    _of_queries[launch_grid(blocks_q * batch * heads)](
        *(of_dq, of_q, k_step, v_step, of_given, lse, delta, heads, group, seq_q, seq_k, scale),
        EVEN_K=seq_k % block_step == 0,
        **launch,
    )
    return dq, dk, dv
