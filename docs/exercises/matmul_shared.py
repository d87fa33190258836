"""A matrix product with tiles in shared memory.

Each thread computes one number of c, in blocks of TILE x TILE. Without tiles a block would read each row of
a and each column of b TILE times. With them every thread loads one number of a and one of b in each step,
and all threads use them.
"""

from __future__ import annotations

import torch
from numba import cuda, float32

from kernel_pipeline.numba_launch import launch

TILE = 8


@cuda.jit
def _matmul(c, a, b):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    i = cuda.threadIdx.x
    j = cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + j
    column = cuda.blockIdx.x * TILE + i
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        # YOURS: load a number into each tile, 0 beyond the matrices; wait; add TILE products; wait.
        inside = row < a.shape[0] and start + i < a.shape[1]
        a_tile[j, i] = a[row, start + i] if inside else float32(0)
        inside = start + j < b.shape[0] and column < b.shape[1]
        b_tile[j, i] = b[start + j, column] if inside else float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[j, k] * b_tile[k, i]
        cuda.syncthreads()
        # END
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def yours(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Launch a block for each tile of the product."""
    c = torch.empty((a.shape[0], b.shape[1]), device=a.device)
    launch(_matmul, (-(-b.shape[1] // TILE), -(-a.shape[0] // TILE)), (TILE, TILE), c, a, b)
    return c


def expected(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product in float64."""
    return a.double() @ b.double()


def cases():
    """One tile, two steps, and a rest in every direction."""
    for m, n, k in ((8, 8, 8), (8, 8, 16), (9, 10, 11)):
        yield torch.randn(m, k), torch.randn(k, n)


TOPIC, STEP = "Numba", 5

MISTAKE = """
inside = row < a.shape[0] and start + i < a.shape[1]
a_tile[j, i] = a[row, start + i] if inside else float32(0)
inside = start + j < b.shape[0] and column < b.shape[1]
b_tile[j, i] = b[start + j, column] if inside else float32(0)
cuda.syncthreads()
for k in range(TILE):
    total += a_tile[j, k] * b_tile[i, k]
cuda.syncthreads()
"""

HINTS = (
    "Thread (i, j) loads a[row, start + i] into a_tile[j, i], and b[start + j, column] into b_tile[j, i].",
    "c[row, column] needs row j of a's tile and column i of b's: a_tile[j, k] * b_tile[k, i].",
    "The second barrier: no thread may load the next tile while another still reads this one.",
)
