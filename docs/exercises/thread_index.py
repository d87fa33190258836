"""Add two vectors, with one thread per element.

Numba compiles Python to CUDA: the function is the code of one thread. The launch has enough blocks of 32
threads for all elements, so some threads have no element.
"""

from __future__ import annotations

import torch
from numba import cuda

from kernel_pipeline.numba_launch import launch


@cuda.jit
def _add(out, x, y):
    # YOURS: find this thread's element, and add it if it exists.
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        out[i] = x[i] + y[i]
    # END


def yours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Launch a thread for each element, in blocks of 32."""
    out = torch.empty_like(x)
    launch(_add, -(-x.numel() // 32), 32, out, x, y)
    return out


def expected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum."""
    return x.double() + y.double()


def cases():
    """Full blocks, and a last block with too many threads."""
    for elements in (64, 100):
        yield torch.randn(elements), torch.randn(elements)


TOPIC, STEP = "Numba", 1

MISTAKE = """
i = cuda.blockIdx.x + cuda.threadIdx.x
if i < out.size:
    out[i] = x[i] + y[i]
"""

HINTS = (
    "cuda.threadIdx.x counts within the block, from 0. How many threads are in the blocks before this one?",
    "cuda.blockIdx.x blocks of cuda.blockDim.x threads are before it.",
    "Threads beyond the end must do nothing: if i < out.size.",
)
