"""What the products with packed weights for Hopper work out before they compute, compiled without CUDA."""

from __future__ import annotations

import ctypes

import pytest

from kernel_pipeline import loading
from tests.kernels import compiled

SOURCE = """
#include "transposed_tiles.h"
extern "C" long long place(long long place, long long tiles_m, long long tiles_n) {
  const kernels::PlaceOfTile at = kernels::place_of_tile(place, tiles_m, tiles_n);
  return at.m * 1000 + at.n;
}
extern "C" int row_of_sums(int block_n) { return kernels::TileLayout{16, block_n, 3, 0}.row_of_sums(); }
"""


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = compiled.library(SOURCE, loading.ROOT / "include", tmp_path_factory.mktemp("tiles"))
    library.place.restype = ctypes.c_longlong
    library.place.argtypes = [ctypes.c_longlong] * 3
    return library


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (8, 8), (13, 5), (16, 2), (19, 33)])
def test_every_tile_comes_once_and_few_of_x_at_a_time(tiles: ctypes.CDLL, shape: tuple[int, int]) -> None:
    rows, columns = shape
    order = [divmod(tiles.place(place, rows, columns), 1000) for place in range(rows * columns)]
    assert sorted(order) == [(row, column) for row in range(rows) for column in range(columns)]
    height = min(8, rows)
    assert order[:height] == [(row, 0) for row in range(height)]


@pytest.mark.parametrize("block_n", [128, 256])
def test_a_warp_stages_its_sums_without_a_bank_conflict(tiles: ctypes.CDLL, block_n: int) -> None:
    """A lane has row lane / 4 of w and columns 2 (lane % 4) and one more of x."""
    stride = tiles.row_of_sums(block_n)
    for column in range(2):
        banks = {((2 * (lane % 4) + column) * stride + lane // 4) % 32 for lane in range(32)}
        assert len(banks) == 32
    assert stride * 4 % 16 == 0, "rows of float4"
