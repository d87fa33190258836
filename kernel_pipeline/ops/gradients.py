"""Choose between a kernel and torch's own operators for a gradient."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from ..contract import Gpu
from . import function, plans, table_files


def operator_of(kernel: str, grad: torch.Tensor) -> torch._ops.OpOverload | None:
    """Return the operator of a backward kernel, for the formula of a derivative. Return None if the formula
    should consist of torch's own operators: no table for the gradient's GPU has the kernel, so that
    torch.compile may fuse the formula with its neighbours; or the gradient is itself differentiated, or is
    computed under vmap, for which the kernel's operator has no rules."""
    if torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    if not has_times(kernel, plans.gpu_of(grad.device), plans.slug_of(grad.device)):
        return None
    return function(kernel).operator


def has_times(kernel: str, gpu: Gpu | None, slug: str | None) -> bool:
    """Whether a table by which a GPU's choices are made has times of the kernel: the GPU's own table, or that
    of another GPU of its architecture. Never on a CPU."""
    return gpu is not None and slug is not None and _has_times(kernel, gpu, slug, table_files.folders())


@functools.cache
def _has_times(kernel: str, gpu: Gpu, slug: str, places: tuple[Path, ...]) -> bool:
    other = table_files.sibling(places, slug, gpu)
    found = (table_files.table_of(slug), None if other is None else other[1])
    return any(one is not None and kernel in one.kernels for one in found)
