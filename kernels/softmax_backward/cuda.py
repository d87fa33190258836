"""Softmax's backward pass in CUDA C++."""

from __future__ import annotations

import torch

from ..gradient_inputs import check_gradient, with_rows

WIDEST = 65536
"""The vectors of a row that the registers of a cluster hold: of 16 bytes, or of one element where rows don't
begin at multiples of 16 bytes."""


def cuda(d_out: torch.Tensor, out: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the gradient for a matrix of at least one column, each row in the registers of a cluster, with a
    block for every ``block_size`` columns, up to 16 blocks of up to 16 warps. A row with more than 65536
    columns is copied unless it begins at a multiple of 16 bytes. Raises ValueError for rows too wide for a
    cluster."""
    check_gradient("softmax_backward", d_out, out)
    columns = out.shape[1]
    width = 16 // out.itemsize if columns * out.itemsize % 16 == 0 else 1
    if columns > WIDEST * width:
        raise ValueError(f"a cluster holds a row: {columns} columns > {WIDEST * width}")
    d_out, out = with_rows(d_out), with_rows(out)
    if columns > WIDEST:
        d_out, out = _aligned(d_out), _aligned(out)
    d_x: torch.Tensor = torch.ops.softmax_backward.cuda(d_out, out, block_size, num_warps)
    return d_x


def _aligned(x: torch.Tensor) -> torch.Tensor:
    is_aligned = x.data_ptr() % 16 == 0 and x.stride(0) * x.itemsize % 16 == 0
    return x if is_aligned else x.clone(memory_format=torch.contiguous_format)
