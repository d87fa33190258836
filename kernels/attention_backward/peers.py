"""Attention's backward pass of other projects, where they are installed."""

from __future__ import annotations

import torch


def flash_attn_4(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients by FlashAttention-4 (CuTe DSL), which takes (batch, sequence, heads, head_dim)."""
    from flash_attn.cute.interface import _flash_attn_bwd

    swapped = [x.transpose(1, 2) for x in (q, k, v, out, d_out)]
    made = _flash_attn_bwd(*swapped, lse.contiguous(), causal=causal)
    return tuple(x.transpose(1, 2) for x in made[:3])
