"""The backward pass of GELU's tanh form by torch: by separate operators, and by its own kernel."""

from __future__ import annotations

import math

import torch

FACTOR = math.sqrt(2 / math.pi)


def formula(d_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient by the formula, in float32 at least, one kernel for each operation."""
    wide = torch.promote_types(x.dtype, torch.float32)
    values, given = x.to(wide), d_out.to(wide)
    square = values * values
    t = torch.tanh(FACTOR * (values + 0.044715 * square * values))
    slope = FACTOR * (1 + 3 * 0.044715 * square)
    return (given * (0.5 * (1 + t) + 0.5 * values * (1 - t * t) * slope)).to(x.dtype)


def gelu_backward(d_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient by torch's backward kernel, for tensors of any shape."""
    made: torch.Tensor = torch.ops.aten.gelu_backward(d_out, x, approximate="tanh")
    return made
