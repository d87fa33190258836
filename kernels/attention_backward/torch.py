"""Attention's backward pass by torch: with the full matrices of scores, and by backends of
``scaled_dot_product_attention``, whose backward operators are called directly."""

from __future__ import annotations

import torch

from ..attention.torch import aligned_rows, visible

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def manual(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
) -> Gradients:
    """Return the gradients by separate operators, each of which reads and writes full matrices."""
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = q.shape[3] ** -0.5
    p = torch.exp((q * scale) @ k.mT - lse[..., None])
    if causal:
        p = p.masked_fill(~visible(q, k), 0.0)
    delta = (out.float() * d_out.float()).sum(-1, keepdim=True)
    ds = (p * (d_out @ v.mT - delta) * scale).to(q.dtype)
    dq, dk, dv = ds @ k, ds.mT @ q, p.to(q.dtype).mT @ d_out
    if group > 1:
        dk, dv = (x.unflatten(1, (kv_heads, group)).sum(2) for x in (dk, dv))
    return dq, dk, dv


def sdpa_flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
) -> Gradients:
    """Return the gradients by torch's FlashAttention-2; on a CPU by torch's kernel, which has no groups."""
    q, k, v, out, d_out = aligned_rows(q, k, v, out, d_out)
    if not q.is_cuda:
        return _flash_on_cpu(q, k, v, out, lse, d_out, causal)
    unused = torch.empty(2, dtype=torch.int64, device=q.device)  # the dropout's random state
    made: Gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        *(d_out, q, k, v, out, lse.contiguous(), None, None, q.shape[2], k.shape[2]),
        *(0.0, causal, unused, unused),
    )
    return made


def _flash_on_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
) -> Gradients:
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, q, k, v, out, lse.contiguous(), 0.0, causal
    )
    if group > 1:
        dk, dv = (x.unflatten(1, (kv_heads, group)).sum(2) for x in (dk, dv))
    return dq, dk, dv


def sdpa_cudnn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
) -> Gradients:
    """Return the gradients by cuDNN's fused backward pass."""
    q, k, v, out, d_out = aligned_rows(q, k, v, out, d_out)
    lse = lse.contiguous() if lse.data_ptr() % 16 == 0 else lse.clone(memory_format=torch.contiguous_format)
    unused = torch.empty((), dtype=torch.int64, device=q.device)  # the dropout's random state
    made: Gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *(d_out, q, k, v, out, lse[..., None], unused, unused, None, None, None),
        *(q.shape[2], k.shape[2], 0.0, causal),
    )
    return made
