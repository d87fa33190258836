"""What attention_backward's cuda_flash works out before it computes, compiled without CUDA: blocks of keys,
tiles of queries, shared memory."""

import ctypes
import itertools

import pytest

from kernel_pipeline import loading
from kernels.attention_backward.parameters import CUDA_TILES
from tests.kernels import compiled

SOURCE = """
#include "flash_layout.h"
#define SHOWN extern "C" __attribute__((visibility("default")))
using namespace attention_backward;
SHOWN void at(int heads, int blocks, int at_once, int last_first, int place, int* found) {
  const KeyBlock keys = Schedule{heads, blocks, groups_of(heads, at_once), last_first != 0}.at(place);
  found[0] = keys.block;
  found[1] = keys.head;
}
SHOWN void tiles(int key, int block_m, int seq_q, int seq_k, int causal, int* found) {
  const QueryTiles tiles = query_tiles(key, block_m, seq_q, seq_k, causal != 0);
  found[0] = tiles.first;
  found[1] = tiles.full;
  found[2] = tiles.end;
}
SHOWN void steps(int all, int part, int split, int* found) {
  const Steps steps = steps_of(all, part, split);
  found[0] = steps.first;
  found[1] = steps.end;
  found[2] = parts_of(all, split);
}
SHOWN int turn(int block, int tile, int block_m, int seq_q, int seq_k, int causal) {
  return turn_of(block, tile, block_m, seq_q, seq_k, causal != 0);
}
SHOWN int begins(int head_dim, int block_m, int stages, int stage, int* found) {
  const SharedLayout layout(head_dim, block_m, stages);
  found[0] = layout.statistics(stage);
  found[1] = layout.keys();
  found[2] = layout.values();
  found[3] = layout.gradients(0);
  found[4] = layout.gradients(1);
  found[5] = layout.part(0);
  found[6] = layout.part(1);
  found[7] = layout.queries(stage);
  found[8] = layout.d_out(stage);
  found[9] = sizeof(Barriers);
  return layout.bytes();
}
"""

KEYS = 128
SHARED_MEMORY = 227 * 1024
"""Bytes that a block may have on Hopper."""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled.library(SOURCE, loading.ROOT / "attention_backward", tmp_path_factory.mktemp("layout"))


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("heads", [1, 2, 7, 12])
@pytest.mark.parametrize("blocks", [1, 2, 8, 11])
@pytest.mark.parametrize("last_first", [False, True])
def test_every_block_is_done_once(
    layout: ctypes.CDLL, last_first: bool, blocks: int, heads: int, at_once: int
) -> None:
    found, done = (ctypes.c_int * 2)(), []
    for place in range(heads * blocks):
        layout.at(heads, blocks, at_once, last_first, place, found)
        done.append((found[0], found[1]))
    assert sorted(done) == [(block, head) for block in range(blocks) for head in range(heads)]
    for head in range(heads):
        order = [block for block, of in done if of == head]
        assert order == sorted(order, reverse=last_first)
    if blocks > 1:
        places = [[place for place, (_, of) in enumerate(done) if of == head] for head in range(heads)]
        sizes = {(own[-1] - own[0]) // (blocks - 1) for own in places}
        assert max(sizes) <= at_once, "a group has more heads than asked for"
        assert max(sizes) >= at_once / 2 or max(sizes) == heads, "a group has less than half of these"
        assert max(sizes) - min(sizes) <= 1, "a group is larger than the others"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_m", [64, 80, 128])
@pytest.mark.parametrize(
    ("seq_q", "seq_k"), [(1, 1), (77, 333), (128, 128), (300, 300), (500, 1000), (1, 700), (640, 641)]
)
def test_a_block_masks_the_tiles_that_do_not_see_it_whole(
    layout: ctypes.CDLL, seq_q: int, seq_k: int, block_m: int, causal: bool
) -> None:
    found = (ctypes.c_int * 3)()
    for key in range(0, seq_k, KEYS):
        layout.tiles(key, block_m, seq_q, seq_k, causal, found)
        first, full, end = found
        assert end == -(-seq_q // block_m)
        assert 0 <= first <= full <= end
        assert first < end, "a block has something to do"
        for tile in range(end):
            queries = range(tile * block_m, min((tile + 1) * block_m, seq_q))
            sees = [min(seq_k, query + seq_k - seq_q + 1) if causal else seq_k for query in queries]
            assert (tile >= first) == (max(sees) > key), "a tile is skipped that sees a key, or none is"
            assert (tile >= full) <= (min(sees) >= key + KEYS), "a tile is not masked"
            past_the_end = key + KEYS > seq_k
            assert past_the_end or (tile < full) <= (min(sees) < key + KEYS), "a tile is masked for nothing"


@pytest.mark.parametrize("split", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("all_steps", [1, 5, 8, 17, 2**30])
def test_parts_have_each_step_once(layout: ctypes.CDLL, all_steps: int, split: int) -> None:
    found, end = (ctypes.c_int * 3)(), 0
    for part in range(split):
        layout.steps(all_steps, part, split, found)
        assert found[0] == end, "a part begins where the one before ends"
        assert found[1] - found[0] <= -(-all_steps // split), "a part has more than its share"
        assert (found[1] > found[0]) == (part < found[2]), "parts that have steps come first"
        end = found[1]
    assert end == all_steps


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_m", [64, 80, 128])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (77, 333), (300, 300), (500, 1000), (640, 641)])
def test_blocks_take_turns_in_the_order_of_the_schedule(
    layout: ctypes.CDLL, seq_q: int, seq_k: int, block_m: int, causal: bool
) -> None:
    """Or a block would wait for one that begins after its end."""
    found, blocks = (ctypes.c_int * 3)(), -(-seq_k // KEYS)
    done = [0] * -(-seq_q // block_m)
    for place in range(blocks):
        at = (ctypes.c_int * 2)()
        layout.at(1, blocks, 1, causal, place, at)
        layout.tiles(at[0] * KEYS, block_m, seq_q, seq_k, causal, found)
        for tile in range(found[0], found[2]):
            assert layout.turn(at[0], tile, block_m, seq_q, seq_k, causal) == done[tile]
            done[tile] += 1


@pytest.mark.parametrize(
    ("head_dim", "block_m", "stages"),
    [(head_dim, *tile[:2]) for head_dim, tiles in CUDA_TILES.items() for tile in tiles],
)
def test_shared_memory_holds_what_a_block_needs(
    layout: ctypes.CDLL, head_dim: int, block_m: int, stages: int
) -> None:
    found = (ctypes.c_int * 10)()
    sizes = {
        0: 8 * block_m,
        1: 2 * KEYS * head_dim,
        2: 2 * KEYS * head_dim,
        3: 2 * KEYS * block_m,
        4: 2 * KEYS * block_m,
        5: 2 * block_m * head_dim,
        6: 2 * block_m * head_dim,
        7: 2 * block_m * head_dim,
        8: 2 * block_m * head_dim,
    }
    spans: set[tuple[int, int]] = set()
    for stage in range(stages):
        needed = layout.begins(head_dim, block_m, stages, stage, found)
        assert needed <= SHARED_MEMORY
        assert found[0] % 16 == 0, "a bulk copy begins at a multiple of 16 bytes"
        assert not any(found[which] % 1024 for which in range(1, 9)), "tiles begin where the swizzle does"
        spans |= {(found[which], found[which] + size) for which, size in sizes.items()}
    ordered = [(0, found[9]), *sorted(spans)]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ordered))
    assert ordered[-1][1] + 1024 <= needed, "with what aligns it"
