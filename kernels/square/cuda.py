"""The square in CUDA C++, as a first lecture writes it."""

from __future__ import annotations

import torch


def cuda_naive(x: torch.Tensor) -> torch.Tensor:
    """Return the square, one thread per element, in blocks of 16 x 16 threads."""
    # The blocks need a matrix; other shapes are viewed as one with the same last dimension.
    columns = x.shape[-1] if x.dim() > 0 else 1
    matrix = x.reshape(x.numel() // columns if columns else 0, columns)
    out: torch.Tensor = torch.ops.square.cuda_naive(matrix)
    return out.reshape(x.shape)
