"""Lay out matrices as the tensor memory accelerator (TMA) needs them: rows begin at multiples of 16 bytes."""

from __future__ import annotations

import torch

ALIGNMENT = 16
"""The row pitch and the address of a descriptor's matrix are multiples of this many bytes."""


def lying(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return ``x`` or its transpose, whichever has contiguous rows, and whether it is the transpose. If both
    have contiguous rows, prefer aligned rows; if neither has them, return a contiguous copy of ``x``."""
    found = [
        (rows, is_transposed)
        for rows, is_transposed in ((x, False), (x.t(), True))
        if rows.stride(1) == 1 and rows.stride(0) >= rows.shape[1]
    ]
    for one in found:
        if _is_aligned(one[0]):
            return one
    return found[0] if found else (x.contiguous(), False)


def describable(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return the same as ``lying``, but with aligned rows for a descriptor: rows that are not aligned are
    copied to padded rows."""
    rows, is_transposed = lying(x)
    if _is_aligned(rows):
        return rows, is_transposed
    elements = ALIGNMENT // x.itemsize
    width = -(-rows.shape[1] // elements) * elements
    padded = x.new_empty((rows.shape[0], width))[:, : rows.shape[1]]
    return padded.copy_(rows), is_transposed


def _is_aligned(rows: torch.Tensor) -> bool:
    return rows.stride(0) * rows.itemsize % ALIGNMENT == 0 and rows.data_ptr() % ALIGNMENT == 0
