"""A stencil with a halo in shared memory.

out[i] = x[i - 1] + x[i] + x[i + 1], with 0 beyond the ends. Each number is needed by three threads, so a
block of 64 threads loads its 64 numbers into shared memory once. The threads at the block's edges also need
a number of the neighbouring blocks: the halo.
"""

from __future__ import annotations

import torch

from docs.exercises._cuda import run

SOURCE = r"""
__global__ void stencil(float* out, const float* x, int elements) {
  __shared__ float tile[66];  // tile[1 + t] is thread t's number; tile[0] and tile[65] are the halo
  const int t = threadIdx.x;
  const int i = blockIdx.x * 64 + t;
  // YOURS: fill tile[0] to tile[65], with 0 beyond the ends of x, and wait for all threads.
  tile[1 + t] = i < elements ? x[i] : 0.0f;
  if (t == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
  if (t == 63) tile[65] = i + 1 < elements ? x[i + 1] : 0.0f;
  __syncthreads();
  // END
  if (i < elements) out[i] = tile[t] + tile[1 + t] + tile[2 + t];
}

extern "C" void run(float* out, const float* x, int elements) {
  LAUNCH(stencil, (elements + 63) / 64, 64, out, x, elements);
}
"""


def yours(x: torch.Tensor) -> torch.Tensor:
    """Compile the source, and call it."""
    out = torch.empty_like(x)
    run(SOURCE, out, x, x.numel())
    return out


def expected(x: torch.Tensor) -> torch.Tensor:
    """The sums in float64."""
    padded = torch.nn.functional.pad(x.double(), (1, 1))
    return padded[:-2] + padded[1:-1] + padded[2:]


def cases():
    """One block, several, and a last block that is not full."""
    for elements in (64, 192, 200):
        yield (torch.rand(elements) + 1,)


TOPIC, STEP = "CUDA C++", 2

MISTAKE = """
tile[1 + t] = i < elements ? x[i] : 0.0f;
if (t == 0) tile[0] = 0.0f;
if (t == 63) tile[65] = 0.0f;
__syncthreads();
"""

HINTS = (
    "Each thread loads its own number into tile[1 + t]. Two numbers of the tile are then still missing.",
    "Thread 0 loads x[i - 1] into tile[0], thread 63 loads x[i + 1] into tile[65], if they exist.",
    "Without __syncthreads() a thread may read a neighbour's number before it is there.",
)
