"""Check the weights."""

from __future__ import annotations

import torch


def checked(w: torch.Tensor) -> torch.Tensor:
    """Return the weights as contiguous rows. Raises ValueError unless the input is a matrix of a dtype that
    ``matmul_sparse`` multiplies."""
    dtype = str(w.dtype).removeprefix("torch.")
    if dtype not in ("bfloat16", "float16"):
        raise ValueError(f"needs bfloat16 or float16, got {dtype}")
    if w.dim() != 2:
        raise ValueError(f"sparsify needs weights (n, k), got shape {tuple(w.shape)}")
    return w.contiguous()
