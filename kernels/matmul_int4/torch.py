"""The product by torch: with weights dequantised before the call, and by torch's kernel for this packing."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import without_padding

from .problem import GROUPS


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return ``x @ w.T`` of two matrices in 16 bits, by cuBLAS on a GPU.

    On a CPU, if k is not a multiple of 32, multiply in float32 and round once: with AMX, oneDNN (of torch
    2.13) reads past the end of bfloat16 rows and multiplies by zeros, and an infinity there gives NaN.
    """
    if x.is_cpu and x.shape[1] % 32:
        return torch.mm(x.float(), w.float().t()).to(x.dtype)
    return torch.mm(without_padding(x), without_padding(w).t())


def dense(x: torch.Tensor, w: torch.Tensor, granularity: str) -> torch.Tensor:
    """Return the product with the weights in 16 bits."""
    del granularity
    return product(x, w)


def int4pack(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str
) -> torch.Tensor:
    """Return the product by torch's tinygemm, which defines this packing."""
    out: torch.Tensor = torch.ops.aten._weight_int4pack_mm(x, packed, GROUPS[granularity], scales_and_zeros)
    return out
