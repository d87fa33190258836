"""Check and prepare the inputs of this repository's providers."""

from __future__ import annotations

import torch

from .problem import GROUPS, TILE_K, TILE_N, up

ENDLESS = 1 << 30
"""The group size of a whole channel, larger than any k."""


def checked(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Return the inputs as contiguous rows, and the number of weights that share a scale. It is ``ENDLESS``
    for a channel: a kernel need not know where its only group ends.

    Raises ValueError for inputs that don't fit together, and for an unsupported dtype.
    """
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in ("bfloat16", "float16") or scales_and_zeros.dtype != x.dtype:
        other = str(scales_and_zeros.dtype).removeprefix("torch.")
        raise ValueError(f"needs bfloat16 or float16 for x and scales_and_zeros, got {dtype} and {other}")
    if x.dim() != 2 or scales_and_zeros.dim() != 3 or packed.dtype != torch.int32:
        raise ValueError(
            f"matmul_int4 needs x (m, k), int32 weights and scales (groups, n, 2), got shapes "
            f"{tuple(x.shape)} and {tuple(scales_and_zeros.shape)}, and {packed.dtype}"
        )
    k, n = x.shape[1], scales_and_zeros.shape[1]
    group = GROUPS[granularity] or up(k, TILE_K)
    wanted = (up(n, TILE_N) // TILE_N, up(k, TILE_K) // TILE_K, 32, 4), (up(k, group) // group, n, 2)
    if (tuple(packed.shape), tuple(scales_and_zeros.shape)) != wanted:
        raise ValueError(
            f"matmul_int4 needs weights {wanted[0]} and scales {wanted[1]} for x of {tuple(x.shape)}, got "
            f"{tuple(packed.shape)} and {tuple(scales_and_zeros.shape)}"
        )
    group_size = ENDLESS if granularity == "channel" else group
    return x.contiguous(), packed.contiguous(), scales_and_zeros.contiguous(), group_size


def as_pairs(scales_and_zeros: torch.Tensor) -> torch.Tensor:
    """Return each scale with its zero as one 32-bit number, the scale in the lower half."""
    aligned = scales_and_zeros
    if not aligned.is_meta and aligned.data_ptr() % 4:
        aligned = aligned.clone()
    return aligned.view(torch.int32)
