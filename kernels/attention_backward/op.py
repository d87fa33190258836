"""Attention's backward pass as a function of tensors."""

from __future__ import annotations

import torch

from kernels.attention.op import expanded, masked_scores, problem
from kernels.ops.declaration import Op


def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv of ``attention(q, k, v, causal)``, given what its output contributes.

    out and d_out: like q; lse: (batch, heads, seq_q), the logarithm of the sum of each row's exponentials.
    What providers take is as in ``attention``; the rest are the formulas in torch, with all scores in
    memory. It has no derivative of its own."""
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    keys, values = expanded(q, k, v)
    scores = masked_scores(q, keys, causal)
    wide = scores.dtype
    scale = q.shape[3] ** -0.5
    p = torch.exp(scores - lse.to(wide)[..., None])
    given = d_out.to(wide)
    delta = (out.to(wide) * given).sum(-1, keepdim=True)
    ds = p * (given @ values.to(wide).mT - delta) * scale
    dq, dk, dv = ds @ keys.to(wide), ds.mT @ q.to(wide), p.mT @ given
    if group > 1:
        dk, dv = (x.unflatten(1, (kv_heads, group)).sum(2) for x in (dk, dv))
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)


op = Op(
    definition=attention_backward,
    problem=lambda q, k, v, out, lse, d_out, causal: problem(q, k, v, causal),
    inputs=lambda q, k, v, out, lse, d_out, causal: (q, k, v, out, lse, d_out),
)
