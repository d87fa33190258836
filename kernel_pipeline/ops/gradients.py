"""Choose between a kernel and torch's own operators for a gradient."""

from __future__ import annotations

import torch

from . import function, plans, tuned


def operator_of(kernel: str, grad: torch.Tensor) -> torch._ops.OpOverload | None:
    """Return the operator of a backward kernel, for the formula of a derivative. Return None if the formula
    should consist of torch's own operators: no table for the gradient's GPU has the kernel, so that
    torch.compile may fuse the formula with its neighbours; or the gradient is itself differentiated, or is
    computed under vmap, for which the kernel's operator has no rules."""
    if torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    if not tuned.has_times(kernel, plans.gpu_of(grad.device), plans.slug_of(grad.device)):
        return None
    return function(kernel).operator
