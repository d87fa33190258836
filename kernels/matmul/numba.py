"""The matrix product in Numba: square tiles of both inputs in shared memory, in Python."""

from __future__ import annotations

import functools
from typing import Any

import torch
from numba import cuda, float32

from kernel_pipeline.numba_launch import check_numba, launch

from .checks import check_ieee


@functools.cache
def _tiled(tile: int) -> Any:
    """Return the kernel for one tile size, since the compiler must know the size of a shared array."""

    @cuda.jit  # type: ignore[untyped-decorator]
    def tiled(out: Any, a: Any, b: Any) -> None:
        """A block computes a tile of the output, one thread per element. In each step every thread loads one
        element of a and one of b, and each loaded element is used ``tile`` times."""
        tile_of_a = cuda.shared.array((tile, tile), float32)
        tile_of_b = cuda.shared.array((tile, tile), float32)
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        row = cuda.blockIdx.y * tile + y
        column = cuda.blockIdx.x * tile + x
        total = float32(0)
        for start in range(0, a.shape[1], tile):
            inside = row < a.shape[0] and start + x < a.shape[1]
            tile_of_a[y, x] = float32(a[row, start + x]) if inside else float32(0)
            inside = start + y < b.shape[0] and column < b.shape[1]
            tile_of_b[y, x] = float32(b[start + y, column]) if inside else float32(0)
            cuda.syncthreads()
            for i in range(tile):
                total += tile_of_a[y, i] * tile_of_b[i, x]
            cuda.syncthreads()
        if row < out.shape[0] and column < out.shape[1]:
            out[row, column] = total

    return tiled


def tiled(a: torch.Tensor, b: torch.Tensor, arithmetic: str, tile: int) -> torch.Tensor:
    """Return the product of an (m, k) and a (k, n) matrix, one block per ``tile`` by ``tile`` tile.

    Raises ValueError for other inputs, for a dtype that Numba does not support, and for an arithmetic other
    than ``ieee``.
    """
    check_ieee(a, b, arithmetic)
    check_numba(a)
    a, b = a.contiguous(), b.contiguous()
    out = a.new_empty((a.shape[0], b.shape[1]))
    if out.numel() > 0:
        blocks = (-(-out.shape[1] // tile), -(-out.shape[0] // tile))
        launch(_tiled(tile), blocks, (tile, tile), out, a, b)
    return out
