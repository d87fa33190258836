"""Check the inputs of this repository's providers."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import check_dtype


def check_vectors(x: torch.Tensor, y: torch.Tensor) -> None:
    """Raises ValueError unless the inputs are two vectors of one length, device and supported dtype."""
    if x.dim() != 1 or x.shape != y.shape:
        raise ValueError(
            f"vector_add needs two vectors of one length, got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if x.dtype != y.dtype or x.device != y.device:
        both = f"{x.dtype} on {x.device} and {y.dtype} on {y.device}"
        raise ValueError(f"vector_add needs one dtype on one device, got {both}")
    check_dtype(x)
