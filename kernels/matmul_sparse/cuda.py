"""The sparse product's operator in CUDA C++, for few rows of x."""

from __future__ import annotations

import torch

from kernels.matmul_sparse import TILE_K, TILE_N, up


def cuda(
    x: torch.Tensor, values: torch.Tensor, metadata: torch.Tensor, warps_k: int, split_k: int
) -> torch.Tensor:
    """The product of up to 32 rows of x.

    Raises ValueError for inputs that don't belong together and for a dtype that would not be served in full,
    RuntimeError for weights that are no whole tiles.
    """
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in (x, values, metadata)]
    if dtypes[0] not in ("bfloat16", "float16") or dtypes[1] != dtypes[0] or dtypes[2] != "int32":
        raise ValueError(
            f"needs bfloat16 or float16 for x and values and int32 for metadata, got {', '.join(dtypes)}"
        )
    if x.dim() != 2 or values.dim() != 2:
        raise ValueError(
            f"matmul_sparse needs x (m, k) and values (n, k / 2), got {tuple(x.shape)} "
            f"and {tuple(values.shape)}"
        )
    n, k = values.shape[0], up(x.shape[1], TILE_K)
    wanted = (n, k // 2), (up(n, TILE_N) // TILE_N, k // TILE_K, 32)
    if (tuple(values.shape), tuple(metadata.shape)) != wanted:
        raise ValueError(
            f"matmul_sparse needs values {wanted[0]} and metadata {wanted[1]} for x of {tuple(x.shape)}, got "
            f"{tuple(values.shape)} and {tuple(metadata.shape)}"
        )
    ready = (aligned(x, 4), aligned(values, 16), aligned(metadata, 4))
    out: torch.Tensor = torch.ops.matmul_sparse.cuda(*ready, warps_k, split_k)
    return out


def aligned(x: torch.Tensor, multiple: int) -> torch.Tensor:
    """The tensor in rows without gaps, from a multiple of so many bytes on."""
    packed = x.contiguous()
    return packed.clone() if not packed.is_meta and packed.data_ptr() % multiple else packed
