"""The matrix product for torch.compile.

Dynamo can't trace the setting of a flag, so it skips the function that sets it. That function runs
uncompiled and calls a compiled function while the flag is set. This module is separate because Dynamo takes
seconds to import.
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
    """Return torch's own product, for torch.compile alone."""
    out: torch.Tensor = with_flag(_product, unpadded(a), unpadded(b), arithmetic)
    return out


@skip
def max_autotune(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return torch's own product, for which Inductor times cuBLAS and its own Triton templates at each shape
    and chooses the fastest. This is ``mode="max-autotune"`` without its CUDA graphs."""
    with torch._inductor.config.patch(max_autotune=True):
        out: torch.Tensor = with_flag(_product_to_tune, unpadded(a), unpadded(b), arithmetic)
    return out


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


def _product_to_tune(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply in a separate function: Dynamo keeps one graph per function and shapes, regardless of
    Inductor's options."""
    return torch.mm(a, b)
