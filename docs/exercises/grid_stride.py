"""Square a vector with fewer threads than elements.

The grid is as large as the GPU, not as the vector: 2 blocks of 32 threads. Each thread takes an element, then
the element that is a whole grid further on, and so on. Neighbouring threads then always take neighbouring
elements, and their accesses are coalesced.
"""

from __future__ import annotations

import torch
from numba import cuda

from kernel_pipeline.numba_launch import launch


@cuda.jit
def _square(out, x):
    first = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    # YOURS: square all elements of this thread.
    threads = cuda.gridDim.x * cuda.blockDim.x
    for i in range(first, out.size, threads):
        out[i] = x[i] * x[i]
    # END


def yours(x: torch.Tensor) -> torch.Tensor:
    """Launch 64 threads for a vector of any length."""
    out = torch.empty_like(x)
    launch(_square, 2, 32, out, x)
    return out


def expected(x: torch.Tensor) -> torch.Tensor:
    """The squares."""
    return x.double() ** 2


def cases():
    """Fewer elements than threads, and more."""
    for elements in (40, 64, 300):
        yield (torch.randn(elements),)


TOPIC, STEP = "Numba", 2

MISTAKE = """
if first < out.size:
    out[first] = x[first] * x[first]
"""

HINTS = (
    "A thread's elements are `first`, first + threads, first + 2 * threads ... How many threads are there?",
    "cuda.gridDim.x blocks of cuda.blockDim.x threads.",
    "range(first, out.size, threads) also leaves out threads that have no element.",
)
