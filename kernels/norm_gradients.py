"""Launch the persistent Triton programs of the backward passes of norms, and add their sums over the rows."""

from __future__ import annotations

from typing import Any

import torch
import triton

from kernel_pipeline.tensors import check_affine, persistent_programs

from .gradient_inputs import check_gradient, with_rows
from .partial_sums import added
from .row_gradients import NARROW, row_too_wide

Gradients = tuple[torch.Tensor, ...]

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""d_out, x and weight."""


def launch_persistent(  # launch parameters
    name: str,
    kernel: Any,
    sums: int,
    inputs: Inputs,
    block_size: int,
    num_warps: int,
    num_stages: int,
    per_sm: int,
) -> Gradients:
    """Return the gradients of x and of what ``sums`` counts, for a matrix of at least one column: ``kernel``
    keeps whole rows in registers. A program takes as many rows at a time as fit into ``block_size`` elements,
    at least one. Raises ValueError for rows too wide for registers, and for inputs that do not fit together.
    """
    d_out, x, weight = checked(name, inputs)
    rows, columns = x.shape
    if reason := row_too_wide(columns):
        raise ValueError(reason)
    width = triton.next_power_of_2(columns)
    block_size = max(block_size, width)
    constants = {
        "WIDTH": width,
        "BLOCK_SIZE": block_size,
        "EVEN_N": columns == width,
        "STAGES": num_stages,
        "WIDE": width > NARROW,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }
    programs = min(triton.cdiv(rows, block_size // width), persistent_programs(x, per_sm))
    return _launched(kernel, sums, (d_out, x, weight), programs, constants)


def checked(name: str, inputs: Inputs) -> Inputs:
    """Return the inputs with contiguous rows and weight. Raises ValueError unless they fit together."""
    d_out, x, weight = inputs
    check_gradient(name, d_out, x)
    check_affine(name, "weight", weight, x)
    return with_rows(d_out), with_rows(x), weight.contiguous()


def _launched(
    kernel: Any, sums: int, inputs: Inputs, programs: int, constants: dict[str, int | bool]
) -> Gradients:
    """Return d_x and the sums over the rows of all programs, zeros without rows."""
    d_out, x, weight = inputs
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    if programs == 0:
        return d_x, *(torch.zeros_like(weight) for _ in range(sums))
    totals = torch.empty((sums, programs, x.shape[1]), dtype=torch.float32, device=x.device)
    kernel[(programs,)](*(d_x, totals, d_out, x, weight, d_out.stride(0), x.stride(0), *x.shape), **constants)
    return d_x, *added(totals, x.dtype)
