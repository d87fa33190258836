"""Softmax in Numba: one block per row, reduced in shared memory.

A row is read three times, for its maximum, its sum and its result; after the first read the caches hold a row
that is not too long. Numba's simulator has no warp shuffles, so both reductions go through shared memory, in
two levels: one number per thread, then LANES numbers, which every thread reads.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from numba import cuda, float32

from kernel_pipeline.numba_launch import check_numba, launch
from kernel_pipeline.tensors import check_matrix

LANES = 32
"""The first level of a reduction leaves this many numbers, which each thread reduces by itself."""


@cuda.jit  # type: ignore[untyped-decorator]
def _softmax(out: Any, x: Any) -> None:
    """A block computes one row; a thread takes every blockDim.x-th column."""
    shared = cuda.shared.array(0, float32)  # sized by the launch: one number per thread, and LANES
    row = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    threads = cuda.blockDim.x

    largest = float32(-math.inf)
    for column in range(thread, x.shape[1], threads):
        largest = max(largest, float32(x[row, column]))
    shared[thread] = largest
    cuda.syncthreads()
    if thread < LANES:
        for i in range(thread, threads, LANES):
            largest = max(largest, shared[i])
        shared[threads + thread] = largest
    cuda.syncthreads()
    for i in range(LANES):
        largest = max(largest, shared[threads + i])

    # max() may skip NaN, but NaN minus anything is NaN, and the sum carries it to the whole row.
    total = float32(0)
    for column in range(thread, x.shape[1], threads):
        total += math.exp(float32(x[row, column]) - largest)
    shared[thread] = total
    cuda.syncthreads()
    if thread < LANES:
        total = float32(0)
        for i in range(thread, threads, LANES):
            total += shared[i]
        shared[threads + thread] = total
    cuda.syncthreads()
    total = float32(0)
    for i in range(LANES):
        total += shared[threads + i]

    factor = float32(1) / total
    for column in range(thread, x.shape[1], threads):
        out[row, column] = math.exp(float32(x[row, column]) - largest) * factor


def softmax(x: torch.Tensor, threads: int) -> torch.Tensor:
    """Return the softmax of a matrix's rows, one block of ``threads`` threads per row. Raises ValueError
    unless the input is a matrix with columns, of a dtype that Numba supports."""
    check_matrix("softmax", x)
    check_numba(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() > 0:
        launch(_softmax, x.shape[0], threads, out, x, shared_bytes=4 * (threads + LANES))
    return out
