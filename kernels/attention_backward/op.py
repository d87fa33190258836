"""Attention's backward pass as a function of tensors."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Op

from ..attention.op import expanded, masked_scores, probabilities, problem, scale_of


def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv of ``attention(q, k, v, causal)``, given the gradient of its output.

    out and d_out: like q; lse: (batch, heads, seq_q), the logarithm of the sum of each row's exponentials.
    Providers support the same tensors as providers of ``attention``; for other calls torch computes the
    formulas with all scores in memory. This function has no derivative of its own."""
    kv_heads, group = k.shape[1], q.shape[1] // max(1, k.shape[1])
    keys, values = expanded(q, k, v)
    scores = masked_scores(q, keys, causal)
    wide = scores.dtype
    p = probabilities(scores, lse)
    given = d_out.to(wide)
    delta = (out.to(wide) * given).sum(-1, keepdim=True)
    ds = p * (given @ values.to(wide).mT - delta) * scale_of(q)
    dq, dk, dv = ds @ keys.to(wide), ds.mT @ q.to(wide), p.mT @ given
    if group > 1:
        dk, dv = (x.reshape(x.shape[0], kv_heads, group, *x.shape[2:]).sum(2) for x in (dk, dv))
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)


def refused(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
) -> str | None:
    """Return the reason why these tensors don't fit together, or None; torch's operators do not check it."""
    del causal
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape:
        return (
            "q must have shape (batch, heads, seq_q, head_dim), k and v (batch, kv_heads, seq_k, head_dim), "
            f"not {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    for name, one in (("out", out), ("d_out", d_out)):
        if (one.shape, one.dtype) != (q.shape, q.dtype):
            return (
                f"{name} must be like q, {tuple(q.shape)} of {q.dtype}, not {tuple(one.shape)} of {one.dtype}"
            )
    wide = torch.promote_types(q.dtype, torch.float32)
    if (lse.shape, lse.dtype) != (q.shape[:3], wide):
        return f"lse must be {tuple(q.shape[:3])} of {wide}, not {tuple(lse.shape)} of {lse.dtype}"
    return None


op = Op(
    definition=attention_backward,
    refused=refused,
    problem=lambda q, k, v, out, lse, d_out, causal: problem(q, k, v, causal),
    inputs=lambda q, k, v, out, lse, d_out, causal: (q, k, v, out, lse, d_out),
)
