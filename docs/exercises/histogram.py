"""A histogram: many threads add to the same counter.

Two threads that do `counts[bin] += 1` at once may both read 5 and both write 6. cuda.atomic.add(counts, bin,
1) reads, adds and writes in one step. Atomics on global memory are slow if all threads want the same bin. So
each block first counts in shared memory, and adds its counts to `out` at the end. The block has as many
threads as there are bins.
"""

from __future__ import annotations

import torch
from numba import cuda, int32

from kernel_pipeline.numba_launch import launch

BINS = 16


@cuda.jit
def _histogram(out, x):
    counts = cuda.shared.array(BINS, int32)
    thread = cuda.threadIdx.x
    counts[thread] = 0
    cuda.syncthreads()
    first = cuda.blockIdx.x * cuda.blockDim.x + thread
    # YOURS: count x[first], and the elements a grid further on, in `counts`; wait; add `counts` to `out`.
    for i in range(first, x.size, cuda.gridDim.x * cuda.blockDim.x):
        cuda.atomic.add(counts, x[i], 1)
    cuda.syncthreads()
    cuda.atomic.add(out, thread, counts[thread])
    # END


def yours(x: torch.Tensor) -> torch.Tensor:
    """Launch three blocks for a vector of any length."""
    out = torch.zeros(BINS, dtype=torch.int32, device=x.device)
    launch(_histogram, 3, BINS, out, x)
    return out


def expected(x: torch.Tensor) -> torch.Tensor:
    """How often each number from 0 to 15 is in x."""
    return torch.bincount(x, minlength=BINS)


def cases():
    """Spread over the bins, and all in one bin."""
    yield (torch.randint(BINS, (200,), dtype=torch.int32),)
    yield (torch.full((100,), 3, dtype=torch.int32),)


TOPIC, STEP = "Numba", 6

MISTAKE = """
for i in range(first, x.size, cuda.gridDim.x * cuda.blockDim.x):
    cuda.atomic.add(counts, x[i], 1)
cuda.syncthreads()
out[thread] = counts[thread]
"""

HINTS = (
    "The loop is that of grid_stride. All threads of the block share `counts`: use the atomic there.",
    "After the barrier thread t holds bin t: it adds counts[t] to out[t].",
    "Three blocks add to the same `out`, so that addition is atomic as well.",
)
