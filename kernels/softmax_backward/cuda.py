"""Softmax's backward pass in CUDA C++."""

from __future__ import annotations

import torch

from ..gradient_inputs import check_gradient, with_rows

WIDEST = 65536
"""The vectors of 16 bytes of a row that the registers of a cluster hold."""


def cuda(d_out: torch.Tensor, out: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the gradient for a matrix of at least one column, each row in the registers of a cluster, with a
    block for every ``block_size`` columns, up to 16 blocks of up to 16 warps. A matrix is copied unless its
    rows begin within 16 bytes as those of a contiguous matrix do. Raises ValueError for rows too wide for a
    cluster."""
    check_gradient("softmax_backward", d_out, out)
    columns, widest = out.shape[1], WIDEST * 16 // out.itemsize
    if columns > widest:
        raise ValueError(f"a cluster holds a row: {columns} columns > {widest}")
    ready = (_copied_if_needed(with_rows(x)) for x in (d_out, out))
    d_x: torch.Tensor = torch.ops.softmax_backward.cuda(*ready, block_size, num_warps)
    return d_x


def _copied_if_needed(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    begins_alike = rows <= 1 or (x.stride(0) - columns) * x.itemsize % 16 == 0
    is_fit = x.data_ptr() % 16 == 0 and begins_alike
    return x if is_fit else x.clone(memory_format=torch.contiguous_format)
