"""Attention's operator in CUDA C++, for few queries of many heads that share a key head.

A tile of ``cuda_flash`` has 128 queries of one head, and a head with fewer queries leaves rows of it empty.
Without a mask every query sees every key. So the queries of all heads that share a key head can be the
queries of one head, as FlashAttention packs them ("pack GQA").
"""

from __future__ import annotations

import torch

from .cuda_checks import check_flash
from .descriptors import copied_if_needed


def cuda_flash_packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    block_m: int,
    block_n: int,
    stages: int,
) -> torch.Tensor:
    """Return attention by ``cuda_flash``, with ``block_m`` queries per tile of all heads that share a key
    head, and ``block_n`` keys per step. If the heads of q do not lie one behind the other, q is copied.

    Raises ValueError for queries, keys and values that don't fit together, and for a mask over several
    queries; RuntimeError for tiles that don't exist for the head_dim.
    """
    check_flash(q, k, v, causal)
    batch, _, seq_q, head_dim = q.shape
    if causal and seq_q > 1:
        raise ValueError(f"queries of one tile would have different masks: seq_q is {seq_q}, with causal")
    packed = q.reshape(batch, k.shape[1], -1, head_dim)
    ready = (copied_if_needed(packed), copied_if_needed(k), copied_if_needed(v))
    out: torch.Tensor = torch.ops.attention.cuda_flash(*ready, False, block_m, block_n, stages)
    return out.view(q.shape)
