"""Attention's operator in CUDA C++."""

from __future__ import annotations

import torch

from .cuda_checks import check_flash
from .descriptors import copied_if_needed


def cuda_flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    block_m: int,
    block_n: int,
    stages: int,
) -> torch.Tensor:
    """Return attention by FlashAttention-3 for Hopper: wgmma and TMA, ``block_m`` queries per tile,
    ``block_n`` keys per step. Tensors that TMA can't address are copied first. Raises ValueError for queries,
    keys and values that don't fit together, and RuntimeError for tiles that don't exist for the head_dim."""
    check_flash(q, k, v, causal)
    ready = (copied_if_needed(q), copied_if_needed(k), copied_if_needed(v))
    out: torch.Tensor = torch.ops.attention.cuda_flash(*ready, causal, q.shape[2], block_m, block_n, stages)
    return out
