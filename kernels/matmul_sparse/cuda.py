"""The sparse product's CUDA C++ operators: for few rows of x, and for any number on Hopper."""

from __future__ import annotations

import torch

from .checks import checked


def cuda(
    x: torch.Tensor, values: torch.Tensor, metadata: torch.Tensor, tiles_n: int, warps_k: int, split_k: int
) -> torch.Tensor:
    """Return the product of up to 32 rows of x.

    Raises ValueError for inputs that don't fit together and for an unsupported dtype, and RuntimeError for
    weights that are not whole tiles.
    """
    x, values, metadata = checked(x, values, metadata)
    ready = (aligned(x, 4), aligned(values, 16), aligned(metadata, 4))
    out: torch.Tensor = torch.ops.matmul_sparse.cuda(*ready, tiles_n, warps_k, split_k)
    return out


def cuda_wgmma(
    x: torch.Tensor,
    values: torch.Tensor,
    metadata: torch.Tensor,
    block_m: int,
    block_n: int,
    split_k: int,
    stages: int,
) -> torch.Tensor:
    """Return the product by Hopper's tensor cores, which TMA feeds. Raises as ``cuda`` does."""
    ready = [aligned(tensor, 16) for tensor in checked(x, values, metadata)]
    out: torch.Tensor = torch.ops.matmul_sparse.cuda_wgmma(*ready, block_m, block_n, split_k, stages)
    return out


def aligned(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Return the tensor, copied unless it begins at a multiple of ``multiple`` bytes."""
    return x.clone() if not x.is_meta and x.data_ptr() % multiple else x
