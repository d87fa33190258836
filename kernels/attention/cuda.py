"""Attention's operator in CUDA C++."""

from __future__ import annotations

import torch

from .checks import check_attention
from .descriptors import copied_if_needed


def cuda_flash(  # the parameters' names
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    block_m: int,
    block_n: int,
    stages: int,
) -> torch.Tensor:
    """FlashAttention-3 for Hopper: wgmma and TMA, ``block_m`` queries a tile, ``block_n`` keys a step.
    Tensors that TMA can't address are copied first. Raises ValueError for queries, keys and values that
    don't fit together, and RuntimeError for tiles that don't exist for their head_dim."""
    check_attention(q, k, v, causal)
    ready = (copied_if_needed(q), copied_if_needed(k), copied_if_needed(v))
    out: torch.Tensor = torch.ops.attention.cuda_flash(*ready, causal, block_m, block_n, stages)
    return out
