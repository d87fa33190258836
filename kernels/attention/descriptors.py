"""Descriptors for the tensor memory accelerator (TMA), which copies blocks of a tensor by their indices.

It fills in zeros past the end of a sequence and writes nothing there. It needs rows that begin at multiples
of 16 bytes and whose elements lie side by side: other tensors are copied first.
"""

from __future__ import annotations

import torch
from triton.tools.tensor_descriptor import TensorDescriptor


def copied_if_needed(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a contiguous copy of one that TMA can't address."""
    aligned = all(stride > 0 and stride * x.itemsize % 16 == 0 for stride in x.stride()[:3])
    if x.stride(3) == 1 and aligned and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def descriptor(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return the descriptor of a tensor for copies of ``rows`` rows of a head."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, x.shape[3]])
