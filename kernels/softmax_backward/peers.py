"""Softmax's backward pass of other projects, where they are installed."""

from __future__ import annotations

import torch


def quack(d_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return the gradient by quack's CuTe DSL kernel."""
    from quack.softmax import softmax_bwd

    made: torch.Tensor = softmax_bwd(d_out.contiguous(), out.contiguous())
    return made


def liger(d_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return the gradient by Liger's Triton kernel."""
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    made: torch.Tensor = _softmax_backward(d_out, out, *calculate_settings(out.shape[1]), False)
    return made
