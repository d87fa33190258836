"""Matrices as the tensor memory accelerator (TMA) copies them: rows that begin at multiples of 16 bytes."""

from __future__ import annotations

import torch

ALIGNMENT = 16
"""Bytes that a descriptor's rows are multiples of."""


def describable(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """A matrix whose rows lie in memory as a descriptor wants them, and whether it is the transposed of
    ``x``. It is ``x`` itself where that will do, else a copy with padded rows."""
    for lying, is_transposed in ((x, False), (x.t(), True)):
        step, each = lying.stride()
        is_whole = each == 1 and step >= lying.shape[1]
        if is_whole and step * x.itemsize % ALIGNMENT == 0 and lying.data_ptr() % ALIGNMENT == 0:
            return lying, is_transposed
    is_transposed = x.stride(0) == 1 and x.stride(1) != 1
    lying = x.t() if is_transposed else x
    elements = ALIGNMENT // x.itemsize
    width = -(-lying.shape[1] // elements) * elements
    padded = x.new_empty((lying.shape[0], width))[:, : lying.shape[1]]
    return padded.copy_(lying), is_transposed
