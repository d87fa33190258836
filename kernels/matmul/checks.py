"""Which inputs the providers written here take."""

from __future__ import annotations

import torch

from kernels.matmul import refused
from kernels.tensors import check_dtype


def check_product(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> None:
    """Raises ValueError for what are no two matrices of one dtype that can be multiplied, for a dtype that
    would not be served in full, and for an arithmetic that the dtype does not have."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul needs (m, k) and (k, n), got shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if a.dtype != b.dtype or a.device != b.device:
        raise ValueError(
            f"matmul needs one dtype on one device, got {a.dtype} on {a.device} and {b.dtype} on {b.device}"
        )
    check_dtype(a)
    if reason := refused(str(a.dtype).removeprefix("torch."), arithmetic):
        raise ValueError(reason)


def check_ieee(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> None:
    """The same for a kernel without tensor cores, which has no ``tf32``."""
    check_product(a, b, arithmetic)
    if arithmetic != "ieee":
        raise ValueError(f"this kernel uses no tensor cores: arithmetic must be ieee, not {arithmetic}")
