"""Add up a block's numbers in shared memory.

A block of 32 threads sums 32 numbers. Each thread puts one into `shared`, which all threads of the block see.
Then the number of sums is halved: thread 0 adds the number of thread 16 to its own, thread 1 that of thread
17. Next 8 threads do the same, then 4, until thread 0 holds the sum. At cuda.syncthreads() each thread waits
for all others.
"""

from __future__ import annotations

import torch
from numba import cuda, float32

from kernel_pipeline.numba_launch import launch

THREADS = 32


@cuda.jit
def _sums(out, x):
    shared = cuda.shared.array(THREADS, float32)
    thread = cuda.threadIdx.x
    shared[thread] = x[cuda.blockIdx.x, thread]
    # YOURS: add up, so that shared[0] is the sum of all.
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            shared[thread] += shared[thread + half]
        half //= 2
    # END
    if thread == 0:
        out[cuda.blockIdx.x] = shared[0]


def yours(x: torch.Tensor) -> torch.Tensor:
    """Launch a block for each row of 32 numbers."""
    out = torch.empty(x.shape[0], device=x.device)
    launch(_sums, x.shape[0], THREADS, out, x)
    return out


def expected(x: torch.Tensor) -> torch.Tensor:
    """The sums of the rows."""
    return x.double().sum(dim=1)


def cases():
    """Rows of random numbers."""
    yield (torch.rand(3, THREADS),)
    yield (torch.randn(4, THREADS),)


TOPIC, STEP = "Numba", 3

MISTAKE = """
cuda.syncthreads()
half = THREADS // 2
while half > 1:
    if thread < half:
        shared[thread] += shared[thread + half]
    half //= 2
    cuda.syncthreads()
"""

HINTS = (
    "Begin with half = 16: threads below `half` add shared[thread + half]. Then halve it.",
    "A thread must not read a number before another thread has written it: put a barrier before each step.",
    "All threads of the block must reach the barrier, also those with nothing to add: keep it out of the if. "
    "The last step is half = 1.",
)
