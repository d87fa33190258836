"""Attention's operator in CUDA C++, for few queries of many heads that share a key head.

A tile of ``cuda_flash`` has 128 queries of one head, and a head with fewer queries leaves rows of it empty.
So the queries of all heads that share a key head become the rows of one head, as FlashAttention packs them
("pack GQA"). The mask counts the queries of each head anew.
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

    Raises ValueError for queries, keys and values that don't fit together, and RuntimeError for tiles that
    don't exist for the head_dim.
    """
    check_flash(q, k, v, causal)
    batch, heads, seq_q, head_dim = q.shape
    packed = q.reshape(batch, k.shape[1], heads // k.shape[1] * seq_q, head_dim)
    ready = (copied_if_needed(packed), copied_if_needed(k), copied_if_needed(v))
    is_masked = causal and seq_q > 1  # a single query sees all keys
    out: torch.Tensor = torch.ops.attention.cuda_flash(*ready, is_masked, seq_q, block_m, block_n, stages)
    return out.view(q.shape)
