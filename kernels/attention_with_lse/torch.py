"""Attention with lse by torch: with the full matrix of scores, and by the operators behind
``scaled_dot_product_attention``, which itself returns no logarithms."""

from __future__ import annotations

import math

import torch

from ..attention.torch import aligned_rows, visible

Outputs = tuple[torch.Tensor, torch.Tensor]


def _with_all_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values with a head for each head of the queries."""
    group = q.shape[1] // k.shape[1]
    return (k, v) if group == 1 else (k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def manual(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Outputs:
    """Return attention and lse by separate operators: the full matrix of scores in float32 is written to
    memory and read back several times."""
    k, v = _with_all_heads(q, k, v)
    scores = (q.float() * (1 / math.sqrt(q.shape[3]))) @ k.float().mT
    if causal:
        scores = scores.masked_fill(~visible(q, k), -math.inf)
    lse = torch.logsumexp(scores, -1)
    return torch.exp(scores - lse[..., None]).to(q.dtype) @ v, lse


def sdpa_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Outputs:
    """Return attention and lse by torch's FlashAttention-2; on a CPU by torch's kernel, which has no
    groups."""
    if q.is_cuda:
        q, k, v = aligned_rows(q, k, v)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, is_causal=causal)[:2]
        return out, lse
    q, k, v = aligned_rows(q, *_with_all_heads(q, k, v))
    made: Outputs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=causal)
    return made


def sdpa_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Outputs:
    """Return attention and lse by cuDNN's fused kernel."""
    q, k, v = aligned_rows(q, k, v)
    out, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, is_causal=causal)[:2]
    return out, lse[..., 0]
