"""Attention of other projects, where they are installed."""

from __future__ import annotations

import torch


def flash_attn_4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return attention by FlashAttention-4 in the CuTe DSL; it takes (batch, sequence, heads, head_dim)."""
    from flash_attn.cute import flash_attn_func

    made = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal)
    out: torch.Tensor = (made[0] if isinstance(made, tuple) else made).transpose(1, 2)
    return out
