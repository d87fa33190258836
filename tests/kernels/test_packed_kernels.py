"""Hopper's kernels of packed weights, on a CPU: their sources compiled against emulated multiprocessors."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernels.transposed_tiles import Wgmma
from tests.kernels.agreement import agree
from tests.kernels.compiled import answer, program

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "emulated"
CPU = torch.device("cpu")
ELEMENTS = {"bfloat16": "BFloat16", "float16": "Half"}
STOOD_IN = {
    "include": ("async.cuh", "common.cuh", "tma.cuh", "wgmma.cuh", "distributed_load.cuh"),
    "matmul_int4": ("weights.cuh", "wgmma_registers.cuh"),
    "matmul_sparse": ("wgmma_sparse.cuh",),
}
COPIED = {
    "include": ("wgmma_descriptors.h", "transposed_tiles.h", "transposed_tiles.cuh"),
    "matmul_int4": ("wgmma_layout.h", "wgmma_kernel.cuh"),
    "matmul_sparse": ("wgmma_layout.h", "wgmma_kernel.cuh"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which the kernels' includes find the emulated multiprocessors."""
    made = tmp_path_factory.mktemp("emulated")
    for name, headers in STOOD_IN.items():
        (made / name).mkdir()
        for header in headers:
            (made / name / header).write_text('#include "../run/packed.h"\n')
        for header in COPIED[name]:
            shutil.copy(loading.ROOT / name / header, made / name)
    (made / "run").mkdir()
    for source in ("hopper.h", "packed.h", "packed.cpp"):
        shutil.copy(HERE / source, made / "run")
    return made


def check(folder: Path, kernel: str, dimensions: dict[str, Any], tiles: Wgmma, seed: int) -> None:
    """The kernel gives the reference's answer, and ends."""
    loaded = loading.load(kernel)
    problem = loaded.kernel.problem(**dimensions)
    assert loaded.kernel.provider("cuda_wgmma").fits(problem, tiles, None) is None
    inputs = loaded.inputs(problem, CPU, seed)
    told = [problem.m, problem.n, problem.k, tiles.stages, tiles.split_k, seed]
    macros = {
        "ELEMENT": ELEMENTS[problem.dtype],
        "BLOCK_M": tiles.block_m,
        "TILES": tiles.block_n // 128,
        "WGMMA_KERNEL": f'"../{kernel}/wgmma_kernel.cuh"',
    }
    if kernel == "matmul_int4":
        told.append(0 if problem.granularity == "channel" else problem.group)
        macros["ONE_GROUP"] = problem.granularity in ("group_128", "channel")
    out = answer(program(folder / "run" / "packed.cpp", **macros), inputs, told, timeout_s=300)
    (exact,) = loaded.expected(problem, inputs)
    agree(out.view(problem.m, problem.n), exact, loaded.kernel.tolerance(problem))


SEEDS = range(4)
"""Copies and wgmmas as early as they may be, or as late: the lowest two bits say which."""

SHAPES = [
    # Fewer rows than a tile has; more steps than buffers; the last block of w in part.
    ({"m": 3, "n": 144, "k": 640}, Wgmma(block_m=16, block_n=128, split_k=1, stages=3)),
    # Two tiles a warpgroup; blocks share k, in parts of different lengths.
    ({"m": 19, "n": 272, "k": 640}, Wgmma(block_m=16, block_n=256, split_k=2, stages=3)),
    ({"m": 40, "n": 112, "k": 896}, Wgmma(block_m=64, block_n=128, split_k=4, stages=3)),
]


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
