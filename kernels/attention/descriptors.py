"""Make descriptors for the tensor memory accelerator (TMA), which copies blocks of a tensor by their indices.

TMA reads zeros past the end of a sequence and writes nothing there. It needs contiguous rows that begin at
multiples of 16 bytes; tensors with other rows are copied first.
"""

from __future__ import annotations

import torch
from triton.tools.tensor_descriptor import TensorDescriptor


def copied_if_needed(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a contiguous copy if TMA can't address it."""
    aligned = all(stride > 0 and stride * x.itemsize % 16 == 0 for stride in x.stride()[:3])
    if x.stride(3) == 1 and aligned and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def descriptor(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor that copies blocks of ``rows`` rows of one head."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, x.shape[3]])
