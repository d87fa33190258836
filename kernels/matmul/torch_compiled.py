"""The matrix product as torch.compile is to be given it.

Dynamo can't trace the setting of a flag, so that what sets it is skipped: it runs as it is written, and what
it calls is compiled, while the flag is set. A file of its own, because Dynamo takes seconds to import.
"""

from __future__ import annotations

import torch
import torch._inductor.config
from torch._dynamo.decorators import skip

from kernel_pipeline.tensors import without_padding

from .torch import by_flag

with_flag, unpadded = skip(by_flag), skip(without_padding)


@skip
def matmul(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """torch's own product, for torch.compile alone."""
    out: torch.Tensor = with_flag(_product, unpadded(a), unpadded(b), arithmetic)
    return out


@skip
def max_autotune(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """The same, where Inductor times cuBLAS and its own Triton templates for each shape, and takes the
    fastest: what ``mode="max-autotune"`` does, without its CUDA graphs."""
    with torch._inductor.config.patch(max_autotune=True):
        out: torch.Tensor = with_flag(_product_to_tune, unpadded(a), unpadded(b), arithmetic)
    return out


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


def _product_to_tune(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A function of its own: Dynamo keeps one graph a function and shapes, whatever Inductor was told."""
    return torch.mm(a, b)
