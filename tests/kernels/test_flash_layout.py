"""What cuda_flash works out before it computes, compiled without CUDA: tiles, keys, shared memory."""

import ctypes
import itertools

import pytest

from kernel_pipeline import loading
from kernels.attention.parameters import CUDA_TILES, WarpSpecialized, cuda_shared_memory
from tests.kernels import compiled

SOURCE = """
#include "flash_layout.h"
#define SHOWN extern "C" __attribute__((visibility("default")))
using namespace attention;
SHOWN void tile(int heads, int blocks, int grid, int causal, int is_packed, int number, int at, int* found) {
  const TileIndex tile = Schedule(heads, blocks, grid, causal != 0, is_packed != 0).tile(number, at);
  found[0] = tile.block;
  found[1] = tile.head;
}
SHOWN void seen(int row, int block_m, int block_n, int seq_q, int seq_k, int causal, int* found) {
  const KeyBlocks seen = key_blocks(row, block_m, block_n, seq_q, seq_k, causal != 0);
  found[0] = seen.full;
  found[1] = seen.end;
}
SHOWN int shared_bytes(int head_dim, int block_m, int block_n, int stages) {
  return SharedLayout(head_dim, block_m, block_n).bytes(stages);
}
SHOWN int begins(int head_dim, int block_m, int block_n, int stage, int* found) {
  const SharedLayout layout(head_dim, block_m, block_n);
  found[0] = layout.queries();
  found[1] = layout.keys(stage);
  found[2] = layout.values(stage);
  return sizeof(Barriers);
}
"""

PAIR = ctypes.c_int * 3


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled.library(SOURCE, loading.ROOT / "attention", tmp_path_factory.mktemp("layout"))


def tiles_of(
    layout: ctypes.CDLL, heads: int, blocks: int, grid: int, causal: bool, is_packed: bool = False
) -> list[list[tuple[int, int]]]:
    """Each block's tiles, in their order."""
    found, every = PAIR(), []
    for at in range(grid):
        own = []
        for number in itertools.count():
            layout.tile(heads, blocks, grid, causal, is_packed, number, at, found)
            if found[1] < 0:
                break
            if found[0] >= 0:
                own.append((found[0], found[1]))
        every.append(own)
    return every


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 7, 12, 40])
@pytest.mark.parametrize("blocks", [1, 2, 3, 8, 11, 12])
def test_every_tile_is_done_once(
    layout: ctypes.CDLL, blocks: int, heads: int, causal: bool, is_packed: bool
) -> None:
    for grid in (1, 2, 5, 6, 13, 24, 132):
        every = tiles_of(layout, heads, blocks, min(grid, heads * blocks), causal, is_packed)
        done = sorted(itertools.chain.from_iterable(every))
        assert done == [(block, head) for block in range(blocks) for head in range(heads)]


@pytest.mark.parametrize(
    ("heads", "blocks", "least"),
    [(64, 32, 0.98), (16, 128, 0.98), (128, 16, 0.98), (128, 11, 0.95), (256, 4, 0.96), (20, 16, 0.88)],
)
def test_blocks_of_the_grid_have_alike_much_to_do(
    layout: ctypes.CDLL, heads: int, blocks: int, least: float
) -> None:
    """With a mask a tile takes as many steps as its number and one more. The last to end has hardly more of
    them than others, on as many multiprocessors as an H200 has."""
    steps = [sum(block + 1 for block, _ in own) for own in tiles_of(layout, heads, blocks, 132, causal=True)]
    assert sum(steps) / 132 / max(steps) >= least


@pytest.mark.parametrize(("group", "tiles"), [(8, 4), (4, 6), (16, 2), (8, 3)])
def test_packed_tiles_are_shared_evenly(layout: ctypes.CDLL, group: int, tiles: int) -> None:
    """The lengths of a head's tiles repeat, and 132 is a multiple of their number."""
    every = tiles_of(layout, 64, group * tiles, 132, causal=True, is_packed=True)
    steps = [sum(block % tiles + 1 for block, _ in own) for own in every]
    assert sum(steps) / 132 / max(steps) >= 0.9


def test_a_head_is_done_by_blocks_that_work_at_the_same_time(layout: ctypes.CDLL) -> None:
    """So that its keys are in L2: in a round of pairs the grid is at few heads."""
    every = tiles_of(layout, 64, 32, 132, causal=True)
    for number in range(12):
        assert len({own[number][1] for own in every}) <= 10


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("block_m", "block_n"), [(128, 128), (128, 176), (192, 128), (192, 112)])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (77, 333), (128, 128), (300, 300), (500, 1000)])
def test_a_tile_masks_the_blocks_that_a_query_does_not_see_whole(
    layout: ctypes.CDLL, seq_q: int, seq_k: int, block_m: int, block_n: int, causal: bool
) -> None:
    found = PAIR()
    for row in range(0, seq_q, block_m):
        layout.seen(row, block_m, block_n, seq_q, seq_k, causal, found)
        queries = range(row, min(row + block_m, seq_q))
        sees = [min(seq_k, query + seq_k - seq_q + 1) if causal else seq_k for query in queries]
        assert found[0] * block_n <= min(sees)
        assert (found[0] + 1) * block_n > min(sees), "a block is masked for nothing"
        assert found[1] * block_n >= max(sees), "keys are left out"
        assert 0 <= found[0] <= found[1]


@pytest.mark.parametrize("head_dim", CUDA_TILES)
def test_shared_memory_is_what_the_declaration_says(layout: ctypes.CDLL, head_dim: int) -> None:
    for (block_m, block_n), stages in itertools.product(CUDA_TILES[head_dim], (2, 3, 4)):
        row = -(-head_dim // 64) * 128  # whole slabs
        needed = layout.shared_bytes(head_dim, block_m, block_n, stages)
        tiles = WarpSpecialized(block_m=block_m, block_n=block_n, stages=stages)
        assert needed == cuda_shared_memory(head_dim, tiles) + 1024, "with what aligns it"
        found, end = PAIR(), 0
        for stage in range(stages):
            barriers = layout.begins(head_dim, block_m, block_n, stage, found)
            assert barriers <= found[0]
            assert not any(begin % 1024 for begin in found), "tiles begin where the swizzle does"
            assert found[1] >= (end or found[0] + block_m * row)
            assert found[2] == found[1] + block_n * row
            end = found[2] + block_n * row
        assert end + 1024 <= needed
