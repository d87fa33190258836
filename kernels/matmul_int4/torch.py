"""The product by torch: with the weights dequantised before, and with its own kernel for this packing."""

from __future__ import annotations

import torch

from kernels.matmul_int4 import GROUPS
from kernels.tensors import without_padding


def dense(x: torch.Tensor, w: torch.Tensor, granularity: str) -> torch.Tensor:
    """The product in 16 bits: cuBLAS on a GPU."""
    del granularity
    return torch.mm(without_padding(x), without_padding(w).t())


def int4pack(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str
) -> torch.Tensor:
    """torch's tinygemm, whose packing this is."""
    out: torch.Tensor = torch.ops.aten._weight_int4pack_mm(x, packed, GROUPS[granularity], scales_and_zeros)
    return out
