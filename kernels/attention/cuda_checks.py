"""Check the inputs of attention's kernels in CUDA C++."""

from __future__ import annotations

import torch

from .checks import check_attention

PADDED = 96
"""The head dimension that fills a slab of 64 columns and half of another, whose rest is zeros. Providers in
Triton don't take it."""


def check_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> None:
    """Raises ValueError as ``check_attention`` does, but not for a head_dim of 96."""
    if all(x.shape[-1] == PADDED for x in (q, k, v)):
        q, k, v = (x[..., :64] for x in (q, k, v))
    check_attention(q, k, v, causal)
