"""Check the inputs of this repository's providers."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import check_dtype

from .problem import FLOAT8, refused


def check_product(
    a: torch.Tensor,
    b: torch.Tensor,
    arithmetic: str,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
) -> None:
    """Raises ValueError unless a and b are two matrices that can be multiplied, of one supported dtype that
    has the arithmetic. Float8 needs both scales, and no other dtype may have them."""
    check_shapes(a, b)
    dtype = str(a.dtype).removeprefix("torch.")
    scales = (scale_a, scale_b)
    if dtype != FLOAT8:
        check_dtype(a)
        if any(scale is not None for scale in scales):
            raise ValueError(f"only {FLOAT8} has scales, not {dtype}")
    elif any(scale is None or scale.numel() != 1 or scale.dtype != torch.float32 for scale in scales):
        raise ValueError(f"{FLOAT8} needs float32 scales for a and b")
    if reason := refused(dtype, arithmetic):
        raise ValueError(reason)


def check_shapes(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raises ValueError unless the inputs are two matrices of one dtype on one device that can be
    multiplied."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul needs (m, k) and (k, n), got shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if a.dtype != b.dtype or a.device != b.device:
        raise ValueError(
            f"matmul needs one dtype on one device, got {a.dtype} on {a.device} and {b.dtype} on {b.device}"
        )


def check_ieee(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> None:
    """Check the inputs of a float32 kernel without tensor cores. Raises ValueError for float8 and for any
    arithmetic but ``ieee``."""
    check_shapes(a, b)
    check_dtype(a)
    if reason := refused(str(a.dtype).removeprefix("torch."), arithmetic):
        raise ValueError(reason)
    if arithmetic != "ieee":
        raise ValueError(f"this kernel uses no tensor cores: arithmetic must be ieee, not {arithmetic}")
