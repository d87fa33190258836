"""The four-bit product's CUDA C++ operators: for few rows of x, and for any number on Hopper."""

from __future__ import annotations

import torch

from .checks import checked
from .problem import GROUPS


def cuda(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    granularity: str,
    tiles_n: int,
    warps_k: int,
    split_k: int,
) -> torch.Tensor:
    """Return the product of up to 32 rows of x.

    Raises ValueError for inputs that don't fit together and for an unsupported dtype, and RuntimeError for
    weights that are not whole tiles.
    """
    x, packed, scales, _ = checked(x, packed, scales_and_zeros, granularity)
    x, packed, scales = aligned(x, 4), aligned(packed, 16), aligned(scales, 4)
    out: torch.Tensor = torch.ops.matmul_int4.cuda(
        x, packed, scales, GROUPS[granularity], tiles_n, warps_k, split_k
    )
    return out


def cuda_wgmma(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    granularity: str,
    block_m: int,
    block_n: int,
    split_k: int,
    stages: int,
) -> torch.Tensor:
    """Return the product by Hopper's tensor cores, which TMA feeds. Raises as ``cuda`` does."""
    x, packed, scales, _ = checked(x, packed, scales_and_zeros, granularity)
    x, packed, scales = aligned(x, 16), aligned(packed, 16), aligned(scales, 16)
    out: torch.Tensor = torch.ops.matmul_int4.cuda_wgmma(
        x, packed, scales, GROUPS[granularity], block_m, block_n, split_k, stages
    )
    return out


def cuda_stream_k(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str, block_m: int
) -> torch.Tensor:
    """Return the product by Hopper's tensor cores; blocks share the steps of all tiles. Raises as ``cuda``
    does."""
    x, packed, scales, _ = checked(x, packed, scales_and_zeros, granularity)
    x, packed, scales = aligned(x, 16), aligned(packed, 16), aligned(scales, 16)
    out: torch.Tensor = torch.ops.matmul_int4.cuda_stream_k(x, packed, scales, GROUPS[granularity], block_m)
    return out


def aligned(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """Return the tensor, copied unless it begins at a multiple of ``multiple`` bytes."""
    return x.clone() if not x.is_meta and x.data_ptr() % multiple else x
