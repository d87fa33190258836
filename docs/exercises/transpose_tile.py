"""Transpose through shared memory, so that reads and writes are coalesced.

A warp's 8 threads with neighbouring threadIdx.x should read neighbouring numbers, and write neighbouring
numbers. A transpose can do only one of them, unless a block holds a tile in shared memory: it reads the
tile by rows, waits, and writes it by rows of the output. Rows and columns are multiples of TILE.
"""

from __future__ import annotations

import torch
from numba import cuda, float32

from kernel_pipeline.numba_launch import launch

TILE = 8
PADDED = TILE + 1  # the column too many avoids bank conflicts


@cuda.jit
def _transpose(out, x):
    tile = cuda.shared.array((TILE, PADDED), float32)
    i = cuda.threadIdx.x
    j = cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE
    column = cuda.blockIdx.x * TILE
    # YOURS: tile[...] = x[...], a barrier, out[...] = tile[...], with i in the last index of x and of out.
    tile[j, i] = x[row + j, column + i]
    cuda.syncthreads()
    out[column + j, row + i] = tile[i, j]
    # END


def yours(x: torch.Tensor) -> torch.Tensor:
    """Launch a block for each tile."""
    out = torch.empty((x.shape[1], x.shape[0]), device=x.device)
    launch(_transpose, (x.shape[1] // TILE, x.shape[0] // TILE), (TILE, TILE), out, x)
    return out


def expected(x: torch.Tensor) -> torch.Tensor:
    """The transpose."""
    return x.double().T.contiguous()


def cases():
    """One tile, a square of tiles, and two tiles side by side."""
    for rows, columns in ((8, 8), (16, 16), (8, 16)):
        yield (torch.randn(rows, columns),)


TOPIC, STEP = "Numba", 4

MISTAKE = """
tile[j, i] = x[row + j, column + i]
cuda.syncthreads()
out[column + j, row + i] = tile[j, i]
"""

HINTS = (
    "x[row + j, column + i] has i last, so neighbours read neighbours. Keep it in tile[j, i].",
    "The output's tile begins at out[column, row]: the block's place is transposed, too.",
    "out[column + j, row + i] is x[row + i, column + j]. Where in the tile is that?",
)
