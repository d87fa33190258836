"""Softmax in Numba: a block a row, reduced in shared memory.

A row is read three times, for its maximum, its sum and its result; where it is not too long the caches have
it after the first. Numba's simulator has no warp shuffles, so both reductions go through shared memory, in
two levels: a number a thread, then 32 numbers, which every thread reads.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from numba import cuda, float32

from kernel_pipeline.numba_launch import check_numba, launch
from kernel_pipeline.tensors import check_matrix

LANES = 32
"""How many numbers of a block its threads reduce each by themselves."""


@cuda.jit  # type: ignore[untyped-decorator]
def _softmax(out: Any, x: Any) -> None:
    """A block does one row; a thread takes every blockDim.x-th column."""
    shared = cuda.shared.array(0, float32)  # how many, the launch says: one a thread, and LANES
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
    """Softmax over the rows of a matrix, a block of so many threads a row. Raises ValueError unless the
    input is a matrix with columns of a dtype that Numba supports."""
    check_matrix("softmax", x)
    check_numba(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() > 0:
        launch(_softmax, x.shape[0], threads, out, x, shared_bytes=4 * (threads + LANES))
    return out
