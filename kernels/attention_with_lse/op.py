"""Attention's forward pass for training as a function of tensors."""

from __future__ import annotations

import torch

from kernel_pipeline import ops
from kernel_pipeline.ops.declaration import Derivative, Op

from ..attention.op import attention, expanded, laid_out, masked_scores, probabilities, problem, wide_of
from ..attention.torch import aligned_rows

BACKWARD = "attention_backward"
"""The kernel of the gradient."""

FLASH_HEAD_DIM = 8
"""On a GPU torch's flash attention takes head dimensions that are multiples of this."""


def attention_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``attention(q, k, v, causal)``, and the logarithm of the sum of each row's exponentials, which
    the backward pass needs: (batch, heads, seq_q), float32, or float64 for float64 inputs.

    The second output has no gradient. Providers support the same tensors as providers of ``attention``; torch
    computes everything else."""
    square = q.shape[2] == k.shape[2] or not causal
    if 0 in (*q.shape, *k.shape):
        return attention(q, k, v, causal), q.new_zeros(q.shape[:3], dtype=wide_of(q))
    if q.is_cuda and q.element_size() == 2 and q.shape[3] % FLASH_HEAD_DIM == 0:
        q, k, v = aligned_rows(q, k, v)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]
    elif q.device.type == "cpu" and square:
        q, k, v = aligned_rows(q, *expanded(q, k, v))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    else:
        scores = masked_scores(q, expanded(q, k, v)[0], causal)
        lse = torch.logsumexp(scores, -1)
        p = probabilities(scores, lse)
        out = (p @ expanded(q, k, v)[1].to(p.dtype)).to(q.dtype)
    return out, lse


def backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    outs: tuple[torch.Tensor, torch.Tensor],
    causal: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients, by the kernel ``attention_backward``."""
    operator = ops.function(BACKWARD).operator
    made: tuple[torch.Tensor, ...] = operator(q, k, v, *outs, grad, causal)
    return made


op = Op(
    definition=attention_with_lse,
    problem=problem,
    inputs=lambda q, k, v, causal: (q, k, v),
    laid_out=laid_out,
    derivative=Derivative(("q", "k", "v", "causal", "outs"), backward, kernel=BACKWARD),
)
