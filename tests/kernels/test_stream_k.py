"""The four-bit product whose blocks share the steps of tiles: the steps of each block, and the kernel on a
CPU, compiled against emulated multiprocessors."""

import ctypes
from pathlib import Path

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernels.matmul_int4.parameters import ROWS_OF_X, StreamK
from kernels.matmul_int4.problem import Problem
from kernels.matmul_int4.steps import stream_k_steps
from tests.kernels import compiled
from tests.kernels.agreement import agree
from tests.kernels.test_packed_kernels import COPIED, STOOD_IN

SOURCE = """
#include "stream_k.h"
extern "C" void work(int tiles, int steps, int multiprocessors, int* found) {
  const matmul_int4::StreamK of = matmul_int4::stream_k(tiles, steps, multiprocessors);
  found[0] = of.blocks;
  found[1] = of.shared;
}
extern "C" int segments(int tiles, int steps, int multiprocessors, int block, int most, int* found) {
  const matmul_int4::StreamK of = matmul_int4::stream_k(tiles, steps, multiprocessors);
  matmul_int4::Segments all(of, block);
  matmul_int4::Segment one;
  int count = 0;
  for (; all.next(one) && count < most; ++count) {
    found[3 * count] = one.tile;
    found[3 * count + 1] = one.first;
    found[3 * count + 2] = one.last;
  }
  return count;
}
extern "C" void layout(int block_m, int block_n, int groups, int stages, int* found) {
  const matmul_int4::StreamKLayout of{{block_m, block_n, stages, block_n * (64 + 4 * groups)}, 8};
  found[0] = of.pieces() % 16;
  found[1] = of.bytes();
}
"""

SHAPES = [
    *(
        (tiles, steps, 132)
        for tiles in (1, 3, 24, 131, 132, 133, 150, 264, 300, 396, 1000)
        for steps in (1, 16, 64)
    ),
    *((tiles, steps, 3) for tiles in (1, 2, 3, 4, 5, 7, 8) for steps in (1, 4, 5, 11)),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("stream_k")
    return compiled.library(SOURCE, loading.ROOT / "matmul_int4", folder)


def segments(library: ctypes.CDLL, shape: tuple[int, int, int], block: int) -> list[tuple[int, int, int]]:
    most = 1100
    found = (ctypes.c_int * (3 * most))()
    count = library.segments(*shape, block, most, found)
    return [(found[3 * i], found[3 * i + 1], found[3 * i + 2]) for i in range(count)]


def work(library: ctypes.CDLL, shape: tuple[int, int, int]) -> tuple[int, int]:
    found = (ctypes.c_int * 2)()
    library.work(*shape, found)
    return found[0], found[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_take_every_step_once_in_equal_shares_and_wait_only_for_blocks_before_them(
    library: ctypes.CDLL, shape: tuple[int, int, int]
) -> None:
    tiles, steps, multiprocessors = shape
    blocks, shared = work(library, shape)
    assert blocks <= multiprocessors
    taken = [segments(library, shape, block) for block in range(blocks)]
    every = [(tile, step) for of in taken for tile, first, last in of for step in range(first, last)]
    assert sorted(every) == [(tile, step) for tile in range(tiles) for step in range(steps)]

    counts = [sum(last - first for _, first, last in of) for of in taken]
    assert min(counts) >= 1 and (not shared or max(counts) - min(counts) <= 1)

    parts: dict[int, list[tuple[int, int, int, int]]] = {}
    for block, of in enumerate(taken):
        for place, (tile, first, last) in enumerate(of):
            if (first, last) != (0, steps):
                assert tile < shared
                parts.setdefault(tile, []).append((first, last, block, place))
    for all_of in parts.values():
        all_of.sort()
        assert len(all_of) > 1
        owner = all_of[0][2]
        for further, (_, _, block, place) in enumerate(all_of[1:], 1):
            assert (block, place) == (owner - further, 0), "whose part comes first"


@pytest.mark.parametrize("m", [40, 128, 260, 649, 1595])
@pytest.mark.parametrize(("n", "k"), [(1024, 1024), (4096, 14336), (14336, 6144), (8192, 8192)])
@pytest.mark.parametrize("block_m", [64, 96, 128, 240])
def test_the_declaration_counts_the_busiest_blocks_steps(
    library: ctypes.CDLL, m: int, n: int, k: int, block_m: int
) -> None:
    gpu = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=60 << 20)
    counted = stream_k_steps(Problem(m=m, n=n, k=k), StreamK(block_m=block_m), gpu)
    shape = (-(-m // block_m) * -(-n // StreamK(block_m=block_m).block_n), k // 128, 132)
    blocks, shared = work(library, shape)
    busiest = max(
        sum(last - first for _, first, last in segments(library, shape, block)) for block in range(blocks)
    )
    assert busiest < counted
    assert counted - busiest <= (4 if shared == 0 else 12 + -(-blocks // shape[0]) + 1)


@pytest.mark.parametrize("block_m", ROWS_OF_X)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_enough_buffers_fit(library: ctypes.CDLL, block_m: int, groups: int) -> None:
    found = (ctypes.c_int * 2)()
    library.layout(block_m, StreamK(block_m=block_m).block_n, groups, 4 if block_m <= 128 else 3, found)
    assert found[0] == 0, "rows of 16 bytes"
    assert found[1] <= 232448


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which the kernel's includes find the emulated multiprocessors."""
    copied = {**COPIED, "matmul_int4": (*COPIED["matmul_int4"], "stream_k.h", "stream_k_kernel.cuh")}
    stood_in = {
        "packed.h": STOOD_IN,
        "stream_k.h": ("matmul_int4/stream_k_instructions.cuh", "include/bulk_reduce.cuh"),
    }
    return compiled.emulated(tmp_path_factory.mktemp("emulated"), copied, stood_in)


RUNS = {
    ("bfloat16", 64, True): "run<BFloat16,64,true>",
    ("bfloat16", 112, True): "run<BFloat16,112,true>",
    ("bfloat16", 240, True): "run<BFloat16,240,true>",
    ("float16", 64, False): "run<Half,64,false>",
}


def check(
    folder: Path, shape: dict[str, int], multiprocessors: int, seed: int, block_m: int = 64, **form: str
) -> None:
    loaded = loading.load("matmul_int4")
    problem = Problem(**shape, **form)
    inputs = loaded.inputs(problem, torch.device("cpu"), seed)
    has_one_group = problem.granularity in ("group_128", "channel")
    group = 0 if problem.granularity == "channel" else problem.group
    which = list(RUNS).index((problem.dtype, block_m, has_one_group))
    arguments = [problem.m, problem.n, problem.k, multiprocessors, group, seed]
    path = compiled.program(folder / "run" / "stream_k.cpp", RUNS=",".join(RUNS.values()))
    out = compiled.answer(path, inputs, [which, *arguments], timeout_s=300)
    (exact,) = loaded.expected(problem, inputs)
    agree(out.view(problem.m, problem.n), exact, loaded.kernel.tolerance(problem))


EMULATED = [
    # A tile that three blocks share; few rows of x, and of w the last tile in part.
    ({"m": 40, "n": 144, "k": 3072}, 3),
    # Two tiles of two blocks and a half each.
    ({"m": 70, "n": 256, "k": 2560}, 5),
    # Five tiles by two blocks: one whole tile each, and three that they share.
    ({"m": 64, "n": 1200, "k": 2048}, 2),
    # Whole tiles alone.
    ({"m": 100, "n": 512, "k": 384}, 2),
]


@pytest.mark.slow
@pytest.mark.xdist_group("emulated packed kernels")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("shape", "multiprocessors"), EMULATED, ids=str)
def test_blocks_that_share_tiles_multiply(
    folder: Path, shape: dict[str, int], multiprocessors: int, seed: int
) -> None:
    check(folder, shape, multiprocessors, seed)


@pytest.mark.slow
@pytest.mark.xdist_group("emulated packed kernels")
def test_an_odd_number_of_pieces_of_the_output(folder: Path) -> None:
    check(folder, {"m": 75, "n": 400, "k": 3072}, 3, seed=3, block_m=112)


@pytest.mark.slow
@pytest.mark.xdist_group("emulated packed kernels")
def test_a_tile_of_128_rows_of_w(folder: Path) -> None:
    check(folder, {"m": 250, "n": 144, "k": 2048}, 5, seed=3, block_m=240)


@pytest.mark.slow
@pytest.mark.xdist_group("emulated packed kernels")
@pytest.mark.parametrize("granularity", ["group_64", "group_32"])
def test_groups_of_scales(folder: Path, granularity: str) -> None:
    check(folder, *EMULATED[0], seed=3, granularity=granularity, dtype="float16")


@pytest.mark.slow
@pytest.mark.xdist_group("emulated packed kernels")
def test_one_scale_for_a_row(folder: Path) -> None:
    check(folder, *EMULATED[0], seed=3, granularity="channel")


FAULTS = {
    "the part of the last range is left out": {
        "range < blocks && begin(range) < (segment": "begin(range + 1) < (segment"
    },
    "a piece is read before all lanes have written it": {
        "      __syncwarp();\n      const int64_t of_x": "      const int64_t of_x"
    },
    "the last buffer is not given back": {
        "  if (lane == 0) {\n    kernels::mbarrier_arrive(&barriers.empty[last]);\n  }\n}": "}"
    },
    "a part is not waited for": {"kernels::wait_for_turn(&given.arrived[from], 1);": ""},
    "a part is announced before it is written": {
        "      kernels::named_barrier_sync(1, kernels::kThreadsOfTile - kernels::kWarpgroup + 32);\n": ""
    },
    "sums are added before the wgmmas are done": {"kernels::wgmma_wait_group<0>();\n#pragma": "#pragma"},
}


@pytest.mark.slow
@pytest.mark.xdist_group("emulated packed kernels")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(folder: Path, fault: str, tmp_path: Path) -> None:
    compiled.spoilt(folder, tmp_path, "matmul_int4", FAULTS[fault])
    with pytest.raises(AssertionError):
        for seed in range(8):
            check(tmp_path, {"m": 75, "n": 144, "k": 3072}, 3, seed, block_m=112)
            check(tmp_path, {"m": 75, "n": 1200, "k": 2048}, 2, seed, block_m=112)
