"""The operator of attention's backward pass in CUDA C++."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import persistent_programs

from ..attention.cuda_checks import check_flash
from ..attention.descriptors import copied_if_needed
from ..attention.parameters import Problem
from .parts import parts

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def cuda_flash(  # noqa: PLR0913, PLR0917  # inputs and parameters
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
    block_m: int,
    stages: int,
    deterministic: bool,
    split: int,
) -> Gradients:
    """Return dq, dk and dv by FlashAttention-3's backward pass for Hopper: wgmma and TMA, ``block_m`` queries
    per step. ``split`` blocks have the same keys, each with a part of the queries of all heads that share
    them; 0 stands for the number that is predicted to be fastest. These parts of dk and dv are rounded to the
    inputs' dtype, and their sum is computed in float32 and rounded again. dk and dv are the same at every
    call, and so is dq with ``deterministic``. Tensors that TMA can't address are copied first. Raises
    ValueError for tensors that don't fit together, and RuntimeError for tiles that don't exist for the
    head_dim, for more parts than queries, and, with ``deterministic``, for heads that don't make ``split``
    equal parts."""
    check_flash(q, k, v, causal)
    if out.shape != q.shape or d_out.shape != q.shape or lse.shape != q.shape[:3]:
        raise ValueError(
            "attention_backward needs out and d_out like q, lse of (batch, heads, seq_q), got shapes "
            f"{tuple(out.shape)}, {tuple(d_out.shape)} and {tuple(lse.shape)}"
        )
    if q.numel() == 0:
        return q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    if split == 0:
        batch, heads, seq_q, head_dim = q.shape
        problem = Problem(
            batch=batch,
            heads=heads,
            kv_heads=k.shape[1],
            seq_q=seq_q,
            seq_k=k.shape[2],
            head_dim=head_dim,
            causal=causal,
            dtype=str(q.dtype).removeprefix("torch."),
        )
        split = parts(problem, block_m, deterministic, persistent_programs(q))
    ready = [copied_if_needed(x) for x in (q, k, v, out)]
    given = copied_if_needed(d_out)
    made: Gradients = torch.ops.attention_backward.cuda_flash(
        *ready, lse.contiguous(), given, causal, block_m, stages, deterministic, split
    )
    return made
