"""The product by torch: with the weights dequantised before, and with its own kernel for this packing."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import without_padding

from .problem import GROUPS


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x @ w.T`` of two matrices in 16 bits, cuBLAS on a GPU.

    On a CPU a k that is no multiple of 32 is multiplied in float32 and rounded once: on AMX oneDNN (of torch
    2.13) pads rows of bfloat16 with zeros and what stands behind them, and an infinity times zero is NaN.
    """
    if x.is_cpu and x.shape[1] % 32:
        return torch.mm(x.float(), w.float().t()).to(x.dtype)
    return torch.mm(without_padding(x), without_padding(w).t())


def dense(x: torch.Tensor, w: torch.Tensor, granularity: str) -> torch.Tensor:
    """The product with the weights in 16 bits."""
    del granularity
    return product(x, w)


def int4pack(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str
) -> torch.Tensor:
    """torch's tinygemm, whose packing this is."""
    out: torch.Tensor = torch.ops.aten._weight_int4pack_mm(x, packed, GROUPS[granularity], scales_and_zeros)
    return out
