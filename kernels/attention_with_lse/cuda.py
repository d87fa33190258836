"""The operator of attention with lse in CUDA C++."""

from __future__ import annotations

import torch

from ..attention.cuda_checks import check_flash
from ..attention.descriptors import copied_if_needed


def cuda_flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    block_m: int,
    block_n: int,
    stages: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and lse by FlashAttention-3 for Hopper, as ``cuda_flash`` of ``attention`` does.
    Raises ValueError for queries, keys and values that don't fit together, and RuntimeError for tiles that
    don't exist for the head_dim."""
    check_flash(q, k, v, causal)
    ready = (copied_if_needed(q), copied_if_needed(k), copied_if_needed(v))
    made: tuple[torch.Tensor, torch.Tensor] = torch.ops.attention_with_lse.cuda_flash(
        *ready, causal, q.shape[2], block_m, block_n, stages
    )
    return made
