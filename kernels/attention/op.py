"""Attention as a function of queries, keys and values."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernel_pipeline.ops.declaration import NotServedError, Op, problem_of

from . import options
from .checks import check_attention
from .parameters import Problem, refused
from .torch import visible


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """Return attention by torch, with the last query at the last key's position if ``causal``.
    ``options.attention`` also has options that the operator does not have."""
    mask = visible(q, k) if causal and q.shape[2] != k.shape[2] else None
    return torch.nn.functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=causal and mask is None,
        enable_gqa=bool(q.shape[1] != k.shape[1]),  # a traced graph compares symbols, which gives a SymBool
    )


def masked_scores(q: torch.Tensor, k: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return the scores, for equal numbers of query and key heads, in float32 at least; -inf for a key that
    the query does not see."""
    wide = wide_of(q)
    scores: torch.Tensor = (q.to(wide) * scale_of(q)) @ k.to(wide).mT
    if causal:
        scores = scores.masked_fill(~visible(q, k), -torch.inf)
    return scores


def probabilities(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Return probabilities from scores and each row's log-sum-exp; 0 for a key that is masked."""
    p = torch.exp(scores - lse.to(scores.dtype)[..., None])
    return p.masked_fill(scores == -torch.inf, 0.0)


def scale_of(q: torch.Tensor) -> float:
    """Return the factor of the scores, 1 / sqrt(head_dim); 1 for a head_dim of 0."""
    return 1 / math.sqrt(max(1, q.shape[3]))


def wide_of(q: torch.Tensor) -> torch.dtype:
    """Return the dtype of scores: float32 at least."""
    return torch.promote_types(q.dtype, torch.float32)


def expanded(q: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors (keys, values) with one head for each head of q."""
    group = q.shape[1] // max(1, tensors[0].shape[1])
    return [x.repeat_interleave(group, 1) if group > 1 else x for x in tensors]


def problem(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Problem:
    """Return the kernel's problem. Raises NotServedError for shapes that the kernel refuses."""
    if (
        q.dim() != 4
        or k.dim() != 4
        or k.shape != v.shape
        or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3])
    ):
        raise NotServedError("q, k and v must have four dimensions, and the same batch and head_dim.")
    made: Problem = problem_of(
        Problem,
        *(q, k, v),
        **{"batch": q.shape[0], "heads": q.shape[1], "kv_heads": k.shape[1], "seq_q": q.shape[2]},
        **{"seq_k": k.shape[2], "head_dim": q.shape[3], "causal": causal},
    )
    if reason := refused(made):
        raise NotServedError(f"{reason}.")
    return made


def laid_out(out: torch.Tensor, q: torch.Tensor, *others: Any) -> torch.Tensor:
    """Return the output with the heads of a row as neighbours if they are in q, and contiguous otherwise, as
    torch's attention does. A model whose linear layer makes the queries of all heads then passes the output
    on without a copy. Logarithms are contiguous."""
    del others
    if out.dim() == q.dim() == 4 and q.stride(1) < q.stride(2):
        return out.transpose(1, 2).contiguous().transpose(1, 2)
    return out.contiguous()


def trains(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> bool:
    """Return whether the backward kernel supports the call and, by torch's own check, flash attention its
    forward pass. Torch differentiates the other calls."""
    try:
        check_attention(q, k, v, causal)
    except ValueError:
        return False
    if q.is_cuda:
        # The forward kernel of scaled_dot_product_attention masks only as many queries as keys.
        square = bool(causal and q.shape[2] == k.shape[2])
        grouped = bool(q.shape[1] != k.shape[1])
        asked = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, square, grouped)
        return torch.backends.cuda.can_use_flash_attention(asked)
    return q.numel() > 0


op = Op(
    definition=attention,
    problem=problem,
    inputs=lambda q, k, v, causal: (q, k, v),
    laid_out=laid_out,
    training="attention_with_lse",
    trains=trains,
    with_options=options.attention,
    without_options=options.plain,
)
