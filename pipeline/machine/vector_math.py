"""The vector mathematics of torch on a CPU, made fit for several threads."""

from __future__ import annotations

import torch

FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log"),
    *("log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
"""What ATen hands to oneMKL's vector mathematics (aten/src/ATen/cpu/vml.h)."""


def resolve() -> None:
    """Call each function once on one element, in this thread alone.

    oneMKL chooses the code of a function when it is first called. Where several threads come first, one of
    them may run code of low accuracy for its part of that call (https://github.com/pytorch/pytorch/issues/188792):
    17 of 8,000 processes whose first call was ``torch.exp`` of 4096 x 64 elements by 8 threads gave a softmax
    that was off by up to 2e-4, and of 8,000 that had called this, none (torch 2.13.0, a Xeon of 2 cores).
    """
    for dtype in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=dtype)
        for name in FUNCTIONS:
            getattr(torch, name)(one)
