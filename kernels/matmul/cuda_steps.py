"""The steps from a tiled product to Hopper's tensor cores. Each adds one idea to the step before, and has a
file of at most 120 lines."""

from __future__ import annotations

import torch

from .checks import check_ieee, check_product


def step_block_1d(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return the product: a thread computes eight elements of a column. Raises ValueError unless the inputs
    are an (m, k) and a (k, n) matrix of one dtype and the arithmetic is ``ieee``."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.step_block_1d(a, b)
    return out


def step_block_2d(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return the product: a thread computes 8 by 8 elements. Raises as ``step_block_1d`` does."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.step_block_2d(a, b)
    return out


def step_vector_loads(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return the product: loads bring four elements. Raises as ``step_block_1d`` does, and RuntimeError
    unless n and k are multiples of four."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.step_vector_loads(a, b)
    return out


def step_warp_tile(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return the product: a warp computes 64 by 64 elements. Raises as ``step_vector_loads`` does."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.step_warp_tile(a, b)
    return out


def step_mma(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return the product of bfloat16 or float16 by tensor cores, which ``cp.async`` feeds. Raises as
    ``step_block_1d`` does, and RuntimeError for float32 and unless n and k are multiples of eight."""
    check_product(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.step_mma(a, b)
    return out


def step_wgmma(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return the product of bfloat16 or float16 by Hopper's tensor cores, which TMA feeds. Raises as
    ``step_mma`` does."""
    check_product(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.step_wgmma(a, b)
    return out
