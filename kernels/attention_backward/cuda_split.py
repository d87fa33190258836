"""The backward pass in CUDA C++, with parts of the heads that share a key head.

A block of ``cuda_flash`` keeps keys of a key head, and takes the queries of all heads that share it. With few
key heads and short sequences there are fewer blocks than multiprocessors. Here each key head is computed
several times, each time for a part of its heads, and the parts of dk and dv are added.
"""

from __future__ import annotations

import torch

from .cuda import Gradients, cuda_flash


def cuda_flash_split(  # noqa: PLR0913, PLR0917  # inputs and parameters
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
    block_m: int,
    stages: int,
    split: int,
) -> Gradients:
    """Return dq, dk and dv by ``cuda_flash``, with ``split`` copies of each key head. Each part of dk and dv
    is rounded to the inputs' dtype; their sum is computed in float32 and rounded again. The order of dq's
    additions differs from call to call. Raises as ``cuda_flash`` does, and ValueError if the heads of a key
    head don't make ``split`` equal parts."""
    kv_heads = k.shape[1]
    if q.shape[1] % (kv_heads * split):
        raise ValueError(f"{kv_heads} key heads for {q.shape[1]} heads don't make {split} equal parts each")
    keys, values = k.repeat_interleave(split, 1), v.repeat_interleave(split, 1)
    dq, dk, dv = cuda_flash(q, keys, values, out, lse, d_out, causal, block_m, stages, False)
    in_parts = k.shape[0], kv_heads, split, *k.shape[2:]
    return dq, dk.view(in_parts).sum(2), dv.view(in_parts).sum(2)
