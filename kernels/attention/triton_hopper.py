"""FlashAttention in Triton for Hopper: a persistent kernel whose tiles the tensor memory accelerator copies.

One or a few programs per multiprocessor each take one block of queries after the other. TMA reads zeros past
the end of a sequence and writes nothing there. It needs contiguous rows that begin at multiples of 16 bytes;
tensors with other rows are copied first.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import persistent_programs

from .checks import check_attention
from .descriptors import copied_if_needed, descriptor
from .triton import LOG2_E

IN_L2 = 32 << 20
"""Bytes of keys and values that concurrent programs share in L2: they surely stay in an H200's 60 MB."""


@triton.jit  # type: ignore[untyped-decorator]
def tile_of(
    number: tl.tensor, blocks: tl.tensor, heads: tl.tensor, section: tl.tensor, CAUSAL: tl.constexpr
) -> tl.tensor:
    """Return the block of queries and the head of a tile's number.

    A section is a number of heads whose keys fit in L2 together. Within a section the blocks that see the
    most keys come first, for all heads: the longest work begins first, and all programs end at about the same
    time.
    """
    first = number // (section * blocks) * section
    wide = tl.minimum(section, heads - first)
    within = number % (section * blocks)
    block = within // wide
    if CAUSAL:
        block = blocks - 1 - block
    return block, first + within % wide


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    total: tl.tensor,
    sums: tl.tensor,
    maxima: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    entry: tl.tensor,
    key_head: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    seq_k: tl.tensor,
    positions: tl.tensor,
    scale: tl.tensor,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    WIDEN: tl.constexpr,
) -> tl.tensor:
    """As ``attend`` of ``kernels/attention/triton.py``, with descriptors for keys and values."""
    column = tl.arange(0, BLOCK_N)
    for start in tl.range(first, last, BLOCK_N):
        of_k = k.load([entry, key_head, start, 0]).reshape(BLOCK_N, HEAD_DIM)
        if WIDEN:
            of_k = of_k.to(tl.float32)
        scores = tl.dot(q, of_k.T)
        if MASKED:
            seen = start + column[None, :] < seq_k
            if CAUSAL:
                seen = seen & (start + column[None, :] <= positions[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        largest = tl.maximum(maxima, tl.max(scores, 1) * scale)
        p = tl.math.exp2(scores * scale - largest[:, None])
        shrink = tl.math.exp2(maxima - largest)
        sums = sums * shrink + tl.sum(p, 1)
        total = total * shrink[:, None]
        of_v = v.load([entry, key_head, start, 0]).reshape(BLOCK_N, HEAD_DIM)
        p = p.to(of_v.dtype)
        if WIDEN:
            p = p.to(tl.float32)
            of_v = of_v.to(tl.float32)
        total = tl.dot(p, of_v, total)
        maxima = largest
    return total, sums, maxima


@triton.jit  # type: ignore[untyped-decorator]
def _flash_hopper(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    batch: tl.tensor,
    heads: tl.tensor,
    group: tl.tensor,
    seq_q: tl.tensor,
    seq_k: tl.tensor,
    section: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDEN: tl.constexpr,
) -> None:
    """A persistent program attends blocks of BLOCK_M queries, one after the other, to all keys that they see.

    out, q, k and v are descriptors. The blocks of keys that all queries see come first, without a mask. The
    other blocks follow with a mask. WIDEN is for Triton's interpreter, whose dot reads a bfloat16's bits as
    an integer.
    """
    blocks = tl.cdiv(seq_q, BLOCK_M)
    for number in tl.range(tl.program_id(0), blocks * batch * heads, tl.num_programs(0)):
        block, head_of_all = tile_of(number, blocks, batch * heads, section, CAUSAL)
        entry = head_of_all // heads
        head = head_of_all % heads
        key_head = head // group
        of_q = q.load([entry, head, block * BLOCK_M, 0]).reshape(BLOCK_M, HEAD_DIM)
        if WIDEN:
            of_q = of_q.to(tl.float32)

        positions = block * BLOCK_M + tl.arange(0, BLOCK_M) + (seq_k - seq_q)
        end = seq_k
        full = seq_k // BLOCK_N * BLOCK_N
        if CAUSAL:
            end = tl.minimum(seq_k, (block + 1) * BLOCK_M + seq_k - seq_q)
            full = tl.minimum(seq_k, block * BLOCK_M + seq_k - seq_q + 1) // BLOCK_N * BLOCK_N
        total = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
        sums = tl.zeros([BLOCK_M], tl.float32)
        maxima = tl.full([BLOCK_M], -float("inf"), tl.float32)
        total, sums, maxima = _attend(
            *(total, sums, maxima, of_q, k, v, entry, key_head, 0, full, seq_k, positions, scale),
            BLOCK_N=BLOCK_N,
            HEAD_DIM=HEAD_DIM,
            CAUSAL=CAUSAL,
            MASKED=False,
            WIDEN=WIDEN,
        )
        if CAUSAL or not EVEN_K:
            total, sums, maxima = _attend(
                *(total, sums, maxima, of_q, k, v, entry, key_head, full, end, seq_k, positions, scale),
                BLOCK_N=BLOCK_N,
                HEAD_DIM=HEAD_DIM,
                CAUSAL=CAUSAL,
                MASKED=True,
                WIDEN=WIDEN,
            )
        result = (total / sums[:, None]).to(out.dtype)
        out.store([entry, head, block * BLOCK_M, 0], result.reshape(1, 1, BLOCK_M, HEAD_DIM))


def heads_in_l2(k: torch.Tensor, group: int, causal: bool) -> int:
    """Return the number of query heads in a section. Without a causal mask all blocks take equally long, and
    a section of one head uses L2 best."""
    return max(1, IN_L2 // (2 * k.shape[2] * k.shape[3] * k.itemsize)) * group if causal else 1


def flash_hopper(  # noqa: PLR0913, PLR0917  # inputs and parameters
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    block_m: int,
    block_n: int,
    num_warps: int,
    num_stages: int,
    per_sm: int,
) -> torch.Tensor:
    """Return attention. ``per_sm`` programs run on each multiprocessor.

    A program has ``block_m`` queries of one head at a time, and takes ``block_n`` keys per step. Raises
    ValueError for queries, keys and values that don't fit together.
    """
    check_attention(q, k, v, causal)
    batch, heads, seq_q, head_dim = q.shape
    group, seq_k = heads // k.shape[1], k.shape[2]
    out = q.new_empty(q.shape)
    if out.numel() == 0:
        return out
    q, k, v = copied_if_needed(q), copied_if_needed(k), copied_if_needed(v)
    tiles = triton.cdiv(seq_q, block_m) * batch * heads
    _flash_hopper[(min(tiles, persistent_programs(q, per_sm)),)](
        *(descriptor(out, block_m), descriptor(q, block_m), descriptor(k, block_n), descriptor(v, block_n)),
        *(
            batch,
            heads,
            group,
            seq_q,
            seq_k,
            heads_in_l2(k, group, causal),
            LOG2_E.value / math.sqrt(head_dim),
        ),
        HEAD_DIM=head_dim,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        CAUSAL=causal,
        EVEN_K=seq_k % block_n == 0,
        WIDEN=not isinstance(_flash_hopper, triton.JITFunction),
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out
