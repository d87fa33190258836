"""The operator of attention with lse in CUDA C++, for few queries of many heads that share a key head."""

from __future__ import annotations

import torch

from ..attention.cuda_checks import check_flash
from ..attention.descriptors import copied_if_needed


def cuda_flash_packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    block_m: int,
    block_n: int,
    stages: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and lse by ``cuda_flash``, with ``block_m`` queries per tile of all heads that share a
    key head, as ``cuda_flash_packed`` of ``attention`` does. Raises ValueError for queries, keys and values
    that don't fit together, and RuntimeError for tiles that don't exist for the head_dim."""
    check_flash(q, k, v, causal)
    batch, heads, seq_q, head_dim = q.shape
    packed = q.reshape(batch, k.shape[1], heads // k.shape[1] * seq_q, head_dim)
    ready = (copied_if_needed(packed), copied_if_needed(k), copied_if_needed(v))
    is_masked = causal and seq_q > 1  # a single query sees all keys
    out, lse = torch.ops.attention_with_lse.cuda_flash(*ready, is_masked, seq_q, block_m, block_n, stages)
    return out.view(q.shape), lse.view(batch, heads, seq_q)
