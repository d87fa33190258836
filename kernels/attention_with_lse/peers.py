"""Attention with lse of other projects, where they are installed."""

from __future__ import annotations

import torch


def flash_attn_4(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and lse by FlashAttention-4 (CuTe DSL), which takes (batch, sequence, heads,
    head_dim)."""
    from flash_attn.cute import flash_attn_func

    swapped = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = flash_attn_func(*swapped, causal=causal, return_lse=True)
    return out.transpose(1, 2), lse
