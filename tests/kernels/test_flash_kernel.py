"""cuda_flash's kernel itself, on a CPU: its source compiled against an emulated multiprocessor."""

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernel_pipeline import loading
from kernels.attention.parameters import CUDA_TILES, Problem
from kernels.attention_with_lse import tolerance
from tests.kernels.agreement import agree
from tests.kernels.compiled import answer, emulated, program, spoilt

pytestmark = pytest.mark.slow

WITH_LSE = loading.load("attention_with_lse")
CPU = torch.device("cpu")
ELEMENTS = {"bfloat16": "kBFloat16", "float16": "kFloat16"}


@dataclasses.dataclass(frozen=True)
class Launch:
    """How it is launched: pipeline stages, blocks of the grid."""

    stages: int = 2
    grid: int = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which the kernel's includes find the emulated multiprocessor."""
    headers = ("flash_kernel.cuh", "flash_layout.h", "flash_rows.cuh")
    return emulated(
        tmp_path_factory.mktemp("emulated"),
        {"attention": headers, "include": ["wgmma_descriptors.h"]},
        {
            "hopper.h": ("include/common.cuh", "include/tma.cuh", "include/wgmma.cuh"),
            "wgmma_96.h": ["attention/wgmma_96.cuh"],
        },
    )


def run(problem: Problem, tiles: tuple[int, int]) -> str:
    """In C++."""
    return f"run<Element::{ELEMENTS[problem.dtype]},{problem.head_dim},{tiles[0]},{tiles[1]}>"


def check(
    folder: Path,
    problem: Problem,
    tiles: tuple[int, int],
    launch: Launch,
    seed: int,
    runs: Sequence[str] | None = None,
    *,
    with_lse: bool = True,
    is_packed: bool = False,
    are_neighbours: bool = False,
) -> None:
    """The kernel gives the reference's answer, and ends. The program has these runs, or its own alone. It is
    called as by attention_with_lse, or as by attention, which wants no lse. Heads that share a key head may
    be packed, and the heads of a row of the output may be neighbours."""
    inputs = WITH_LSE.inputs(problem, CPU, seed)
    lengths = [
        problem.batch,
        problem.heads,
        problem.kv_heads,
        problem.seq_q,
        problem.seq_k,
        int(problem.causal),
    ]
    own = run(problem, tiles)
    runs = [own] if runs is None else runs
    path = program(folder / "run" / "flash.cpp", RUNS=",".join(runs))
    chosen = [launch.stages, launch.grid, seed, int(with_lse), int(is_packed), int(are_neighbours)]
    made = answer(path, inputs, [runs.index(own), *lengths, *chosen])
    out, lse = made[: inputs[0].numel()], made[inputs[0].numel() :].clone().view(torch.float32)
    if are_neighbours:
        out = out.view(problem.batch, problem.seq_q, problem.heads, problem.head_dim).transpose(1, 2)
    exact = WITH_LSE.expected(problem, inputs)
    if not with_lse:
        assert lse.isnan().all(), "nobody wants it"
    for one, right, allowed in zip((out, lse)[: 1 + with_lse], exact, tolerance(problem), strict=False):
        agree(one.reshape(right.shape), right, allowed)


SEEDS = range(4)
"""Copies and wgmmas as early as they may be, or as late: the lowest two bits say which."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("with_lse", "causal"), [(False, True), (True, False)])
@pytest.mark.parametrize(("head_dim", "tiles"), [(64, (192, 128)), (96, (192, 112))])
def test_tiles_follow_each_other(
    folder: Path, head_dim: int, tiles: tuple[int, int], with_lse: bool, causal: bool, seed: int
) -> None:
    """A block of the grid does several tiles of several heads, whose lengths are no multiples of a tile."""
    problem = Problem(
        batch=2, heads=4, kv_heads=2, seq_q=150, seq_k=289, head_dim=head_dim, causal=causal, dtype="bfloat16"
    )
    check(folder, problem, tiles, Launch(stages=2, grid=3), seed, with_lse=with_lse, are_neighbours=with_lse)


@pytest.mark.xdist_group("emulated packed")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("queries", "heads", "seq_k", "head_dim", "tiles"),
    [
        pytest.param(7, 40, 389, 64, (128, 128), id="several heads in a tile"),
        pytest.param(150, 2, 300, 64, (128, 128), id="tiles within a head, and across two"),
        pytest.param(150, 3, 400, 64, (192, 128), id="tiles across two heads and three"),
        pytest.param(150, 3, 400, 96, (192, 112), id="the same with half a slab of columns"),
        pytest.param(150, 2, 150, 64, (128, 128), id="as many queries as keys"),
        pytest.param(64, 5, 64, 64, (128, 128), id="whole heads in a tile"),
    ],
)
def test_packed_heads_have_masks_of_their_own(
    folder: Path, queries: int, heads: int, seq_k: int, head_dim: int, tiles: tuple[int, int], seed: int
) -> None:
    problem = Problem(
        batch=2,
        heads=2 * heads,
        kv_heads=2,
        seq_q=queries,
        seq_k=seq_k,
        head_dim=head_dim,
        causal=True,
        dtype="bfloat16",
    )
    check(folder, problem, tiles, Launch(stages=2, grid=3), seed, is_packed=True)


EVERY = [
    (
        Problem(
            batch=1, heads=2, kv_heads=2, seq_q=200, seq_k=573, head_dim=head_dim, causal=causal, dtype=dtype
        ),
        tiles,
    )
    for head_dim, several in CUDA_TILES.items()
    for tiles in several
    for dtype in ELEMENTS
    if dtype == "bfloat16" or head_dim == 96 or tiles == several[0]
    for causal in (False, True)
]
EVERY_RUN = list(dict.fromkeys(run(*one) for one in EVERY))
"""One program has all of them: most of a compiler's time goes to what they have in common."""


@pytest.mark.xdist_group("emulated flash")
@pytest.mark.parametrize(("problem", "tiles"), EVERY, ids=str)
def test_every_tile(folder: Path, problem: Problem, tiles: tuple[int, int]) -> None:
    check(folder, problem, tiles, Launch(stages=2, grid=1), 3, EVERY_RUN)


FAULTS = {
    "keys are given back before they are used": {"      wgmma_wait_group<1>();\n": ""},
    "no warpgroup gives the first turn": {"if (which == kWarpgroups - 1) {": "if (which == kWarpgroups) {"},
    "nobody waits for the barriers to be made": {"    named_barrier_sync(kBegin, kThreadsAtBegin);\n": ""},
    "no key is masked": {"scores[i] = -INFINITY;": ""},
    "a row's logarithm lacks its maximum": {"(rows.largest[half] + log2f(total))": "log2f(total)"},
}
"""One of each kind of mistake: each compiles the kernel anew."""
OF_PACKED = {
    "heads share a mask": {"(row + half * 8) % of.queries": "(row + half * 8)"},
    "a tile of two heads is masked as one": {"has_one_head = first": "has_one_head = true || first"},
}
"""The same for packed heads."""
OF_HALF_A_SLAB = {
    "scores lack the columns of half a slab": {"kHeadDim / 16": "kHeadDim / kSlab * 4"},
    "the second slab of values begins too early": {
        "mn_major_descriptor(values, 0, kBlockN)": "mn_major_descriptor(values, 0, kBlockN * kHeadDim / 128)"
    },
    "half a slab takes half of the memory": {
        "slabs_of(head_dim) * block_n * kSwizzle": "block_n * head_dim * 2"
    },
    "the columns of half a slab are not stored": {"column < kHeadDim": "column < kHeadDim / kSlab * kSlab"},
}
"""The same for a head_dim of 96 alone: with 64 and 128 columns these are no mistakes."""


@pytest.mark.parametrize(
    ("fault", "head_dim", "is_packed"),
    [
        *(pytest.param(fault, 64, False, id=name) for name, fault in FAULTS.items()),
        *(pytest.param(fault, 64, True, id=name) for name, fault in OF_PACKED.items()),
        *(pytest.param(fault, 96, False, id=name) for name, fault in OF_HALF_A_SLAB.items()),
    ],
)
def test_a_fault_shows(
    folder: Path, fault: dict[str, str], head_dim: int, is_packed: bool, tmp_path: Path
) -> None:
    """Or these tests would say nothing."""
    spoilt(folder, tmp_path, "attention", fault)
    problem = Problem(
        batch=1, heads=3, kv_heads=1, seq_q=150, seq_k=400, head_dim=head_dim, causal=True, dtype="bfloat16"
    )
    tiles = (192, 112 if head_dim == 96 else 128)
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        for seed in SEEDS:
            check(tmp_path, problem, tiles, Launch(stages=2, grid=2), seed, is_packed=is_packed)
