"""Matrices in the layout that the tensor memory accelerator (TMA) needs: rows that begin at multiples of 16
bytes."""

from __future__ import annotations

import torch

ALIGNMENT = 16
"""Bytes that a descriptor's rows are multiples of."""


def lying(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return the matrix as contiguous rows, and whether it is ``x`` transposed. It is ``x`` itself if
    possible; if both are, the one with aligned rows."""
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
    """Return the same with aligned rows for a descriptor: a copy with padded rows if those of ``x`` are not
    aligned."""
    rows, is_transposed = lying(x)
    if _is_aligned(rows):
        return rows, is_transposed
    elements = ALIGNMENT // x.itemsize
    width = -(-rows.shape[1] // elements) * elements
    padded = x.new_empty((rows.shape[0], width))[:, : rows.shape[1]]
    return padded.copy_(rows), is_transposed


def _is_aligned(rows: torch.Tensor) -> bool:
    return rows.stride(0) * rows.itemsize % ALIGNMENT == 0 and rows.data_ptr() % ALIGNMENT == 0
