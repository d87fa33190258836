"""Check and prepare the inputs of backward passes over matrices."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import check_dtype, check_matrix


def check_gradient(kernel: str, d_out: torch.Tensor, x: torch.Tensor) -> None:
    """Raise ValueError unless x is a matrix with at least one column, in float32 or 16 bits, and the
    output's gradient is like it."""
    check_matrix(kernel, x)
    check_dtype(x)
    if d_out.shape != x.shape or d_out.dtype != x.dtype:
        raise ValueError(
            f"{kernel} needs a d_out of shape {tuple(x.shape)} and {x.dtype}, "
            f"got shape {tuple(d_out.shape)} and {d_out.dtype}"
        )


def with_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the matrix, copied unless the elements of a row lie side by side."""
    return x if x.stride(1) == 1 else x.contiguous()
