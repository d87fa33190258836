"""What the products with packed weights for Hopper work out before they compute, compiled without CUDA."""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernels.matmul_int4 import parameters as int4
from kernels.matmul_int4.problem import Problem as Int4Problem
from kernels.matmul_sparse import parameters as sparse
from kernels.matmul_sparse.problem import Problem as SparseProblem
from kernels.transposed_tiles import Wgmma, shared_memory
from tests.kernels import compiled

H200 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=60 << 20)

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


LAYOUT = """
#include "wgmma_layout.h"
extern "C" void layout(int m, int n, int groups, int stages, int* found) {{
  (void)groups;
  const kernels::TileLayout of{{m, n, stages, {bytes_of_w}}};
  found[0] = of.bytes_of_w;
  found[1] = of.bytes();
  found[2] = {swizzled};
  found[3] = of.w() + {bytes_before};
  found[4] = of.stage_bytes();
  found[5] = of.bytes_of_sums();
}}
"""

INT4 = {
    "bytes_of_w": "matmul_int4::bytes_of_w(n, groups)",
    "swizzled": "of.slab_bytes()",
    "bytes_before": "matmul_int4::bytes_of_words(n)",
}
SPARSE = {
    "bytes_of_w": "matmul_sparse::bytes_of_w(n)",
    "swizzled": "of.w()",
    "bytes_before": "matmul_sparse::bytes_of_values(n)",
}


@pytest.mark.parametrize(
    ("kernel", "source", "problem", "groups", "bytes_of_w", "fits"),
    [
        *(
            ("matmul_int4", INT4, problem, groups, int4.wgmma_bytes, int4.wgmma_fits)
            for granularity, groups in (("group_128", 1), ("group_64", 2), ("group_32", 4), ("channel", 1))
            for problem in [Int4Problem(m=4096, n=8192, k=8192, granularity=granularity)]
        ),
        (
            "matmul_sparse",
            SPARSE,
            SparseProblem(m=4096, n=8192, k=8192),
            1,
            lambda _, tiles: sparse.wgmma_bytes(tiles),
            sparse.wgmma_fits,
        ),
    ],
    ids=["int4 group_128", "int4 group_64", "int4 group_32", "int4 channel", "sparse"],
)
def test_the_declaration_asks_for_the_kernels_shared_memory(
    kernel: str,
    source: dict[str, str],
    problem: Any,
    groups: int,
    bytes_of_w: Callable[[Any, Wgmma], int],
    fits: Callable[..., str | None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("layout")
    library = compiled.library(LAYOUT.format(**source), loading.ROOT / kernel, folder)
    seen = 0
    for m, n, stages in itertools.product((16, 32, 64, 128, 256), (128, 256), (2, 3, 4, 6, 8)):
        tiles = Wgmma(block_m=m, block_n=n, split_k=1, stages=stages)
        found = (ctypes.c_int * 6)()
        library.layout(m, n, groups, stages, found)
        of_w, total, swizzled, others, stage, sums = found
        assert of_w == bytes_of_w(problem, tiles)
        assert total == shared_memory(tiles, of_w)
        # TMA's swizzle begins at multiples of 1024 bytes, its other copies at multiples of 128.
        assert swizzled % 1024 == stage % 1024 == others % 128 == 0
        if fits(problem, tiles, H200) is None:
            assert sums <= stages * stage
            seen += 1
    assert seen >= 4
