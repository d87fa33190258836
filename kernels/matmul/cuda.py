"""The matrix product's operators in CUDA C++."""

from __future__ import annotations

import torch

from .checks import check_ieee, check_product
from .descriptors import lying


def cuda_naive(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return the product, one thread per element of the output, without shared memory. Raises ValueError
    unless the inputs are an (m, k) and a (k, n) matrix of one dtype and the arithmetic is ``ieee``."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.cuda_naive(a, b)
    return out


def cuda_tiled(a: torch.Tensor, b: torch.Tensor, arithmetic: str, tile: int) -> torch.Tensor:
    """Return the product, one thread per element of the output, with ``tile`` by ``tile`` tiles of both
    inputs in shared memory. Raises as ``cuda_naive`` does."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.cuda_tiled(a, b, tile)
    return out


def cuda_gemv(
    a: torch.Tensor, b: torch.Tensor, arithmetic: str, columns: int, num_warps: int
) -> torch.Tensor:
    """Return the product of few rows, without tensor cores. Raises as ``cuda_naive`` does, and RuntimeError
    for more than 8 rows."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.cuda_gemv(a, b, columns, num_warps)
    return out


def cuda_wgmma(  # noqa: PLR0913  # inputs and parameters
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    *,
    arithmetic: str,
    block_m: int,
    block_n: int,
    group_m: int,
    stages: int,
    cluster_size: int,
    split_k: int,
) -> torch.Tensor:
    """Return the product by Hopper's tensor cores, which TMA feeds, one block per multiprocessor.

    A matrix whose rows do not begin at multiples of 16 bytes is first copied to aligned rows, by one launch.
    Raises ValueError for inputs that are not an (m, k) and a (k, n) matrix of one dtype and for an arithmetic
    that the dtype does not have, and RuntimeError for problems that the kernel does not support."""
    check_product(a, b, arithmetic, scale_a, scale_b)
    is_float8 = a.dtype == torch.float8_e4m3fn
    if a.numel() == 0 or b.numel() == 0:
        return a.new_zeros((a.shape[0], b.shape[1]), dtype=torch.bfloat16 if is_float8 else a.dtype)
    of_a, a_transposed = lying(a)
    of_b, b_transposed = lying(b)
    out: torch.Tensor = torch.ops.matmul.cuda_wgmma(
        *(of_a, a_transposed, of_b, b_transposed, scale_a, scale_b),
        is_float8 and arithmetic == "ieee",
        *(block_m, block_n, group_m, stages, cluster_size, split_k),
    )
    return out
