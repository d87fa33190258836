"""A matrix product by the naive kernel and by tiles in shared memory: how often memory is read."""

from __future__ import annotations

import numpy as np

SIZE = 64


class Memory:
    """A matrix in device memory that counts the elements that are read."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.reads = 0

    def __getitem__(self, place: tuple) -> np.ndarray:
        found = self.values[place]
        self.reads += found.size
        return found


def naive(a: Memory, b: Memory) -> np.ndarray:
    """One thread per element: it reads a row of a and a column of b."""
    out = np.empty((SIZE, SIZE))
    for row in range(SIZE):
        for column in range(SIZE):
            out[row, column] = a[row, :] @ b[:, column]
    return out


def tiled(a: Memory, b: Memory, tile: int) -> np.ndarray:
    """One block per tile: its threads read tiles of a and b together, then use them from shared memory."""
    out = np.zeros((SIZE, SIZE))
    for row in range(0, SIZE, tile):
        for column in range(0, SIZE, tile):
            for k in range(0, SIZE, tile):
                shared_a = a[row : row + tile, k : k + tile]
                shared_b = b[k : k + tile, column : column + tile]
                out[row : row + tile, column : column + tile] += shared_a @ shared_b
    return out


print("kernel     threads a block   read from memory   a multiply-add")
for tile in (None, 8, 16, 32):
    a, b = (Memory(np.random.default_rng(seed).normal(size=(SIZE, SIZE))) for seed in (0, 1))
    out = naive(a, b) if tile is None else tiled(a, b, tile)
    np.testing.assert_allclose(out, a.values @ b.values)
    name, threads = ("naive", "any") if tile is None else (f"tile {tile}", str(tile * tile))
    reads = a.reads + b.reads
    print(f"{name:11}{threads:>15}{reads:>19}{reads / SIZE**3:>17.4f}")
