"""Which weights are made sparse."""

from __future__ import annotations

import torch


def checked(w: torch.Tensor) -> torch.Tensor:
    """The weights as they lie in rows without gaps. Raises ValueError for no matrix and for a dtype that
    ``matmul_sparse`` does not multiply."""
    dtype = str(w.dtype).removeprefix("torch.")
    if dtype not in ("bfloat16", "float16"):
        raise ValueError(f"needs bfloat16 or float16, got {dtype}")
    if w.dim() != 2:
        raise ValueError(f"sparsify needs weights (n, k), got shape {tuple(w.shape)}")
    return w.contiguous()
