"""Softmax of other projects, where they are installed."""

from __future__ import annotations

import torch


def quack(x: torch.Tensor) -> torch.Tensor:
    """Return softmax by quack's CuTe DSL kernel, without its autograd function."""
    from quack.softmax import softmax_fwd

    out: torch.Tensor = softmax_fwd(x.contiguous())
    return out


def liger(x: torch.Tensor) -> torch.Tensor:
    """Return softmax by Liger's Triton kernel."""
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    out: torch.Tensor = LigerSoftmaxFunction.apply(x)
    return out
