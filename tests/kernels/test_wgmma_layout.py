"""What cuda_wgmma works out before it computes, compiled without CUDA: tiles, swizzle, shared memory."""

import ctypes
import itertools

import pytest

from kernel_pipeline import loading
from kernels.matmul.parameters import Wgmma, wgmma_shared_memory
from tests.kernels import compiled

SOURCE = """
#include "peel.h"
#include "wgmma_layout.h"
#define SHOWN extern "C" __attribute__((visibility("default")))
SHOWN int tile(int place, int tiles_m, int tiles_n, int group) {
  const matmul::TileIndex at = matmul::grouped_tile(place, tiles_m, tiles_n, group);
  return at.m * 1000 + at.n;
}
SHOWN int swizzled(int row, int byte) { return kernels::swizzled(row, byte); }
SHOWN int place(int wave, int cluster, int clusters, int tiles) {
  return matmul::place_of(wave, cluster, clusters, tiles);
}
SHOWN int first_step(int part, int parts, int steps) {
  return matmul::first_step(part, parts, steps);
}
SHOWN int peel(int m, int n, int k, int block_m, int block_n, int cluster_size, int clusters, int skips_half,
               int copies) {
  const matmul::Peeled found =
      matmul::peel({m, n, k, block_m, block_n, cluster_size, clusters, 132, skips_half != 0, copies != 0});
  return found.rows * 1000 + found.columns;
}
SHOWN int shared(int which, int block_m, int block_n, int stages, int parts, int from, int to) {
  const matmul::SharedLayout layout(block_m, block_n, stages, parts);
  const int slot = from == to ? -1 : (layout.slot(from, to) - layout.received()) / layout.part_bytes();
  const int found[] = {layout.bytes(),      layout.stage_bytes(), layout.a_bytes(),
                       layout.output(),     layout.barriers(),    layout.part_bytes(),
                       layout.columns_of_sums(), layout.received(), slot};
  return found[which];
}
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled.library(SOURCE, loading.ROOT / "matmul", tmp_path_factory.mktemp("layout"))


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("tiles", [(1, 1), (1, 7), (7, 1), (8, 8), (13, 5), (16, 2)])
def test_every_tile_comes_once_and_down_a_group_first(
    layout: ctypes.CDLL, tiles: tuple[int, int], group: int
) -> None:
    order = [divmod(layout.tile(place, *tiles, group), 1000) for place in range(tiles[0] * tiles[1])]
    assert sorted(order) == [(row, column) for row in range(tiles[0]) for column in range(tiles[1])]
    height = min(group, tiles[0])
    assert order[:height] == [(row, 0) for row in range(height)]


@pytest.mark.parametrize(("clusters", "tiles"), [(1, 1), (3, 3), (5, 12), (66, 512), (132, 272), (4, 3)])
def test_clusters_take_every_tile_once_and_the_last_wave_from_the_end(
    layout: ctypes.CDLL, clusters: int, tiles: int
) -> None:
    waves = -(-tiles // clusters)
    taken = [[layout.place(wave, one, clusters, tiles) for one in range(clusters)] for wave in range(waves)]
    assert sorted(place for wave in taken for place in wave if place < tiles) == list(range(tiles))
    if left := tiles % clusters:
        assert taken[-1][-left:] == list(range(tiles - 1, tiles - 1 - left, -1))


def test_short_tiles_that_come_last_cost_no_wave_of_their_own(layout: ctypes.CDLL) -> None:
    """2049 x 4095 in tiles of 128 x 256 on 132 multiprocessors: the 16 tiles of one row take half as long."""
    tiles = 17 * 16
    cost = [
        sum(
            1.0 if place < 256 else 0.5
            for wave in range(3)
            if (place := layout.place(wave, block, 132, tiles)) < tiles
        )
        for block in range(132)
    ]
    assert max(cost) == 2


PEELED = {
    "a row more is half a wave more of pairs of blocks": ((2049, 4095, 1023), {"cluster_size": 2}, (1, 0)),
    "a row more goes into the last wave": ((2049, 4095, 1023), {}, (0, 0)),
    "a column more is a wave more": ((2048, 4097, 1024), {}, (0, 1)),
    "rows and columns": ((2056, 4097, 1024), {"cluster_size": 2}, (8, 1)),
    "nine rows are too many": ((2057, 4096, 1024), {"cluster_size": 2}, (0, 0)),
    "nothing is left over": ((2048, 4096, 1024), {"cluster_size": 2}, (0, 0)),
    "no wave is saved": ((8193, 8192, 8192), {"cluster_size": 2}, (0, 0)),
    "all rows are fewer than a tile": ((5, 4096, 1024), {"cluster_size": 1}, (0, 0)),
    "a launch more takes longer than a wave of a short k": (
        (2049, 4096, 64),
        {"cluster_size": 2, "copies": False},
        (0, 0),
    ),
    "the same beside copies": ((2049, 4096, 64), {"cluster_size": 2}, (1, 0)),
    "a wave of a wide product is less than reading all of b": (
        (257, 1 << 16, 1024),
        {"cluster_size": 2, "block_m": 64, "block_n": 64},
        (0, 0),
    ),
}


@pytest.mark.parametrize("case", PEELED)
def test_leftover_rows_are_peeled_off_where_that_saves_time(layout: ctypes.CDLL, case: str) -> None:
    (m, n, k), pinned, expected = PEELED[case]
    told = {"block_m": 128, "block_n": 256, "cluster_size": 1, "copies": True, **pinned}
    clusters = 132 // told["cluster_size"]
    skips_half = told["block_m"] == 128
    found = layout.peel(
        *(
            m,
            n,
            k,
            told["block_m"],
            told["block_n"],
            told["cluster_size"],
            clusters,
            skips_half,
            told["copies"],
        )
    )
    assert divmod(found, 1000) == expected


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("steps", [8, 9, 13, 16, 255])
def test_parts_of_k_follow_each_other_and_none_is_empty(layout: ctypes.CDLL, steps: int, parts: int) -> None:
    begins = [layout.first_step(part, parts, steps) for part in range(parts + 1)]
    assert (begins[0], begins[-1]) == (0, steps)
    sizes = [end - begin for begin, end in itertools.pairwise(begins)]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


def test_a_swizzled_tile_has_every_byte_once_and_no_bank_twice(layout: ctypes.CDLL) -> None:
    places = {layout.swizzled(row, byte) for row in range(64) for byte in range(128)}
    assert places == set(range(64 * 128))
    for piece in range(8):  # what eight lanes of stmatrix write: a piece of 16 bytes in each of 8 rows
        banks = {layout.swizzled(row, piece * 16) % 128 for row in range(8)}
        assert len(banks) == 8


TILES = [
    Wgmma(block_m=block_m, block_n=block_n, stages=stages, split_k=split_k)
    for block_m, block_n, stages, split_k in itertools.product(
        (64, 128), (64, 128, 256), (3, 8), (1, 2, 4, 8)
    )
]
PLACES = ("bytes", "stage", "a", "output", "barriers", "part", "across", "received", "slot")


def shared(layout: ctypes.CDLL, what: str, tiles: Wgmma, *blocks: int) -> int:
    found: int = layout.shared(
        *(PLACES.index(what), tiles.block_m, tiles.block_n, tiles.stages, tiles.split_k, *(blocks or (0, 0)))
    )
    return found


@pytest.mark.parametrize("tiles", TILES, ids=str)
def test_the_declaration_asks_for_enough_shared_memory(layout: ctypes.CDLL, tiles: Wgmma) -> None:
    needed = shared(layout, "bytes", tiles)
    assert needed == wgmma_shared_memory(tiles)
    assert shared(layout, "stage", tiles) % 1024 == 0 == shared(layout, "a", tiles) % 1024
    assert shared(layout, "output", tiles) % 1024 == 0, "tiles begin where the swizzle does"
    assert needed - shared(layout, "barriers", tiles) >= (2 * tiles.stages + 1) * 8 + 1024


@pytest.mark.parametrize("tiles", [one for one in TILES if one.split_k > 1], ids=str)
def test_what_blocks_send_each_other_lies_beside_what_they_have(layout: ctypes.CDLL, tiles: Wgmma) -> None:
    """A block's own sums, then a slot for each other block, then barriers; no two overlap."""
    across, part = shared(layout, "across", tiles), shared(layout, "part", tiles)
    assert part * tiles.split_k == tiles.block_m * across * 4 == shared(layout, "received", tiles)
    assert part % 16 == 0, "bulk copies are of multiples of 16 bytes"
    for to in range(tiles.split_k):
        slots = [shared(layout, "slot", tiles, one, to) for one in range(tiles.split_k) if one != to]
        assert slots == list(range(tiles.split_k - 1))
    end = shared(layout, "received", tiles) + part * (tiles.split_k - 1)
    assert end <= shared(layout, "barriers", tiles)


@pytest.mark.parametrize("block_n", [64, 128, 256])
def test_sums_are_written_and_read_without_two_lanes_at_a_bank(layout: ctypes.CDLL, block_n: int) -> None:
    """Sixteen lanes write 8 bytes each, in four rows of a warp's; eight read 16 bytes each, of one row."""
    across = shared(layout, "across", Wgmma(block_n=block_n, split_k=2))
    written = [(lane // 4 * across + lane % 4 * 2) % 32 for lane in range(16)]
    assert sorted(bank + i for bank in written for i in range(2)) == list(range(32))
    assert across % 4 == 0, "a row begins at a multiple of 16 bytes"
