"""Hopper's kernels of packed weights, on a CPU: their sources compiled against emulated multiprocessors."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernels.transposed_tiles import Wgmma
from tests.kernels.agreement import agree
from tests.kernels.compiled import answer, emulated, program

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("emulated packed kernels")]

CPU = torch.device("cpu")
ELEMENTS = {"bfloat16": "BFloat16", "float16": "Half"}
STOOD_IN = (
    *(f"include/{one}.cuh" for one in ("async", "common", "tma", "wgmma", "distributed_load")),
    *("matmul_int4/weights.cuh", "matmul_int4/wgmma_registers.cuh", "matmul_sparse/wgmma_sparse.cuh"),
)
COPIED = {
    "include": ("wgmma_descriptors.h", "transposed_tiles.h", "transposed_tiles.cuh"),
    "matmul_int4": ("wgmma_layout.h", "wgmma_kernel.cuh"),
    "matmul_sparse": ("wgmma_layout.h", "wgmma_kernel.cuh"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which the kernels' includes find the emulated multiprocessors."""
    return emulated(tmp_path_factory.mktemp("emulated"), COPIED, {"packed.h": STOOD_IN})


SEEDS = range(4)
"""Copies and wgmmas as early as they may be, or as late: the lowest two bits say which."""

SHAPES = [
    # Fewer rows than a tile has; more steps than buffers; the last block of w in part.
    ({"m": 3, "n": 144, "k": 640}, Wgmma(block_m=16, block_n=128, split_k=1, stages=3)),
    # Two tiles a warpgroup; blocks share k, in parts of different lengths.
    ({"m": 19, "n": 272, "k": 640}, Wgmma(block_m=16, block_n=256, split_k=2, stages=3)),
    ({"m": 40, "n": 112, "k": 896}, Wgmma(block_m=64, block_n=128, split_k=4, stages=3)),
]


def run(dtype: str, tiles: Wgmma, has_one_group: bool = True) -> str:
    """In C++."""
    element, one_group = ELEMENTS[dtype], str(has_one_group).lower()
    return f"run<{element},{tiles.block_m},{tiles.block_n // 128},{one_group}>"


IN_BFLOAT16 = [run("bfloat16", tiles) for _, tiles in SHAPES]
RUNS = {
    "matmul_int4": [
        *IN_BFLOAT16,
        *(run("float16", SHAPES[1][1], has_one_group) for has_one_group in (False, True)),
    ],
    "matmul_sparse": [*IN_BFLOAT16, run("float16", SHAPES[2][1])],
}
"""A kernel's program has all of these: most of a compiler's time goes to what they have in common."""


def check(folder: Path, kernel: str, dimensions: dict[str, Any], tiles: Wgmma, seed: int) -> None:
    """The kernel gives the reference's answer, and ends."""
    loaded = loading.load(kernel)
    problem = loaded.kernel.problem(**dimensions)
    assert loaded.kernel.provider("cuda_wgmma").fits(problem, tiles, None) is None
    inputs = loaded.inputs(problem, CPU, seed)
    arguments = [problem.m, problem.n, problem.k, tiles.stages, tiles.split_k, seed]
    macros = {"WGMMA_KERNEL": f'"../{kernel}/wgmma_kernel.cuh"', "RUNS": ",".join(RUNS[kernel])}
    has_one_group = True
    if kernel == "matmul_int4":
        arguments.append(0 if problem.granularity == "channel" else problem.group)
        macros["HAS_GROUPS"] = True
        has_one_group = problem.granularity in ("group_128", "channel")
    which = RUNS[kernel].index(run(problem.dtype, tiles, has_one_group))
    out = answer(program(folder / "run" / "packed.cpp", **macros), inputs, [which, *arguments], timeout_s=300)
    (exact,) = loaded.expected(problem, inputs)
    agree(out.view(problem.m, problem.n), exact, loaded.kernel.tolerance(problem))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("shape", "tiles"), SHAPES, ids=str)
@pytest.mark.parametrize("kernel", ["matmul_int4", "matmul_sparse"])
def test_a_tile_is_multiplied(
    folder: Path, kernel: str, shape: dict[str, int], tiles: Wgmma, seed: int
) -> None:
    check(folder, kernel, shape, tiles, seed)


@pytest.mark.parametrize("granularity", ["group_64", "group_32", "channel"])
def test_groups_of_scales(folder: Path, granularity: str) -> None:
    shape, tiles = SHAPES[1]
    check(folder, "matmul_int4", {**shape, "granularity": granularity, "dtype": "float16"}, tiles, 3)


def test_sparse_weights_in_float16(folder: Path) -> None:
    shape, tiles = SHAPES[2]
    check(folder, "matmul_sparse", {**shape, "dtype": "float16"}, dataclasses.replace(tiles, stages=2), 3)
