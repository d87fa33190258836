"""Check the inputs of this repository's providers."""

from __future__ import annotations

import torch

from .problem import TILE_K, TILE_N, up

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def checked(x: torch.Tensor, values: torch.Tensor, metadata: torch.Tensor) -> Three:
    """Return the inputs as contiguous rows.

    Raises ValueError for inputs that don't fit together, and for an unsupported dtype.
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
    return x.contiguous(), values.contiguous(), metadata.contiguous()
