"""cuda_wgmma's kernel itself, on a CPU: its source compiled against emulated multiprocessors."""

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernel_pipeline import loading
from kernels.matmul.problem import Problem, tolerance
from tests.kernels.agreement import agree
from tests.kernels.compiled import answer, emulated, program, spoilt
from tests.processes import completed

pytestmark = pytest.mark.slow

MATMUL = loading.load("matmul")
CPU = torch.device("cpu")
ELEMENTS = {"bfloat16": "kBFloat16", "float16": "kFloat16"}
HEADERS = (
    "aligned_rows.cuh",
    "edges.cuh",
    "shifted.cuh",
    "wgmma_kernel.cuh",
    "wgmma_mainloop.cuh",
    "wgmma_epilogue.cuh",
    "wgmma_layout.h",
)


@dataclasses.dataclass(frozen=True)
class Launch:
    """A tile, the arguments at run time, and the clusters of the grid; None: as many as tiles."""

    block_m: int = 128
    block_n: int = 128
    stages: int = 3
    cluster_size: int = 1
    split_k: int = 1
    group: int = 2
    clusters: int | None = None
    promoted: bool = False
    peeled: tuple[int, int] = (0, 0)
    """Rows and columns that are computed before the tiles."""

    def tiles(self, problem: Problem) -> int:
        """Return the number of a cluster's tiles."""
        rows, columns = problem.m - self.peeled[0], problem.n - self.peeled[1]
        return -(-rows // (self.block_m * self.cluster_size)) * -(-columns // self.block_n)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which the kernel's includes find the emulated multiprocessors."""
    hopper = ("async.cuh", "common.cuh", "tma.cuh", "wgmma.cuh")
    return emulated(
        tmp_path_factory.mktemp("emulated"),
        {"matmul": HEADERS, "include": ["wgmma_descriptors.h"]},
        {"hopper.h": (*(f"include/{header}" for header in hopper), "matmul/widened.cuh")},
    )


def lying(x: torch.Tensor, lies: str) -> torch.Tensor:
    """A matrix as it lies in memory, its rows filled up with NaN to multiples of 16 bytes."""
    rows = x if lies == "n" else x.t()
    padded = torch.full((rows.shape[0], -(-rows.shape[1] // 8) * 8), torch.nan, dtype=x.dtype)
    padded[:, : rows.shape[1]] = rows
    return padded


def tile(problem: Problem, launch: Launch) -> str:
    """In C++."""
    transposed = (str(one == "t").lower() for one in problem.layout)
    element, promoted = f"kernels::Element::{ELEMENTS[problem.dtype]}", str(launch.promoted).lower()
    return f"matmul::Tile<{','.join((element, f'{launch.block_m},{launch.block_n}', *transposed, promoted))}>"


def check(
    folder: Path, problem: Problem, launch: Launch, seed: int, tiles: Sequence[str] | None = None
) -> None:
    """The kernel gives the reference's answer, and ends. The program has these tiles, or its own alone."""
    inputs = MATMUL.inputs(problem, CPU, seed)
    given = [lying(x, lies) for x, lies in zip(inputs, problem.layout, strict=True)]
    sizes = [
        problem.m,
        problem.n,
        problem.k,
        launch.stages,
        launch.cluster_size,
        launch.split_k,
        launch.group,
    ]
    clusters = launch.tiles(problem) if launch.clusters is None else launch.clusters
    own = tile(problem, launch)
    tiles = [own] if tiles is None else tiles
    path = program(folder / "run" / "wgmma.cpp", TILES=",".join(tiles))
    out = answer(path, given, [tiles.index(own), *sizes, clusters, seed, *launch.peeled])
    (exact,) = MATMUL.expected(problem, inputs)
    agree(out.view(problem.m, problem.n), exact, tolerance(problem))


SEEDS = range(4)
"""Copies and wgmmas as early as they may be, or as late: the lowest two bits say which."""


CASES = pytest.mark.parametrize(
    ("problem", "launch"),
    [
        # A block takes several tiles, the last of few rows and columns, in more steps than there are buffers.
        (Problem(m=200, n=136, k=300, layout="nn"), Launch(64, 64, clusters=3)),
        # A tile's second warpgroup has no row; rows of the output begin anywhere.
        (Problem(m=130, n=77, k=100, layout="nt"), Launch(clusters=1)),
        # Two blocks share columns of b, and the second has no row.
        (Problem(m=120, n=128, k=520, layout="nt"), Launch(cluster_size=2, clusters=1)),
        (Problem(m=300, n=130, k=330, layout="nn"), Launch(64, cluster_size=2, clusters=2)),
        # Blocks share a tile, and parts of k are of different lengths.
        (Problem(m=70, n=72, k=300, layout="nt"), Launch(128, 64, split_k=2)),
        (Problem(m=5, n=61, k=500, layout="nn"), Launch(64, 64, split_k=4)),
        (Problem(m=140, n=64, k=600, layout="nn"), Launch(64, 64, cluster_size=2, split_k=2)),
        # Rows, columns or both are left over from whole tiles.
        (Problem(m=65, n=200, k=530, layout="nn"), Launch(64, 64, clusters=2, peeled=(1, 0))),
        (Problem(m=130, n=77, k=100, layout="nt"), Launch(clusters=1, peeled=(2, 0))),
        (Problem(m=136, n=67, k=70, layout="nn"), Launch(128, 64, cluster_size=2, peeled=(8, 3))),
        (Problem(m=70, n=69, k=600, layout="nt"), Launch(64, 64, split_k=2, peeled=(6, 5))),
        (Problem(m=133, n=129, k=90, layout="tt"), Launch(clusters=1, peeled=(5, 1))),
        (Problem(m=129, n=130, k=90, layout="tn"), Launch(clusters=1, peeled=(0, 2))),
        # As float8's sums are in ieee.
        (Problem(m=150, n=72, k=300, layout="nt"), Launch(128, 64, clusters=1, promoted=True)),
    ],
    ids=str,
)
NARROW, WIDE = Launch(64, 128, clusters=1), Launch(64, 256, clusters=1)
TILES = [
    *dict.fromkeys(
        tile(*case)
        for case in [*CASES.args[1], *((Problem(m=3, n=1, k=70, layout="nt"), one) for one in (NARROW, WIDE))]
    )
]
"""One program has all of them: most of a compiler's time goes to what they have in common."""


@pytest.mark.xdist_group("emulated wgmma")
@pytest.mark.parametrize("seed", SEEDS)
@CASES
def test_the_kernel_multiplies(folder: Path, problem: Problem, launch: Launch, seed: int) -> None:
    check(folder, problem, launch, seed, TILES)


@pytest.mark.xdist_group("emulated wgmma")
@pytest.mark.parametrize("row_bytes", [1, 15, 16, 2046, 2048, 2050, 5000])
def test_rows_that_begin_anywhere_are_copied_whole(folder: Path, row_bytes: int) -> None:
    """Two matrices by one launch: rows behind each other, and those of a wider matrix."""
    path = program(folder / "run" / "aligned.cpp")
    for offset in (0, 2, 5, 14):
        arguments = [9, row_bytes, row_bytes, offset, 17, row_bytes, row_bytes + 3, 15 - offset]
        done = completed([path, *map(str, arguments)], timeout=60)
        assert done.returncode == 0, done.stdout


EVERY = [
    *(
        (block, layout, "bfloat16")
        for layout in ("nn", "nt", "tn", "tt")
        for block in ((64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256))
        if layout[0] == "n" or min(block) >= 128
    ),
    *(((64, 64), "nn", "float16"), ((128, 256), "tt", "float16")),
]
EVERY_TILE = [
    tile(Problem(m=1, n=1, k=1, dtype=dtype, layout=layout), Launch(*block)) for block, layout, dtype in EVERY
]


@pytest.mark.xdist_group("every emulated wgmma")
@pytest.mark.parametrize(("block", "layout", "dtype"), EVERY, ids=str)
def test_every_tile(folder: Path, block: tuple[int, int], layout: str, dtype: str) -> None:
    """A tile and a bit of each dimension, of rows of multiples of 16 bytes and of others."""
    alone, shared = Launch(*block, clusters=1), Launch(*block, split_k=2)
    for more, launch in ((8, alone), (3, alone), (3, shared)):
        problem = Problem(m=block[0] + 70, n=block[1] + more, k=150, dtype=dtype, layout=layout)
        check(folder, problem, launch, seed=3, tiles=EVERY_TILE)


@pytest.mark.xdist_group("emulated wgmma")
@pytest.mark.parametrize("n", [1, 2, 7, 60, 77, 107, 126, 129, 203, 255, 257])
def test_rows_that_begin_anywhere_are_stored_whole(folder: Path, n: int) -> None:
    """Fewer columns than a box, a tile or a bit more, whose rows begin at each place between 16 bytes."""
    for m in (3, 75):
        for launch in (NARROW, WIDE):
            check(folder, Problem(m=m, n=n, k=70, layout="nt"), launch, 1, TILES)


SHARED = (Problem(m=140, n=72, k=600, layout="nt"), Launch(64, 64, cluster_size=2, split_k=2))
RIGHT_EDGE = (Problem(m=70, n=107, k=100, layout="nt"), Launch(64, 128, clusters=1))
LEFT_OVER = (Problem(m=136, n=67, k=700, layout="nn"), Launch(128, 64, cluster_size=2, peeled=(8, 3)))
SEVERAL = (Problem(m=260, n=200, k=400, layout="nn"), Launch(64, 64, cluster_size=2, clusters=1))

FAULTS = {
    "a buffer is given back before it is read": (SEVERAL, {"wgmma_wait_group<1>();": ""}),
    "the buffers' parity does not change": (SEVERAL, {"parity ^= 1;": ""}),
    "what is staged is written over before it is stored": (
        SEVERAL,
        {"bulk_wait_group_read<0>();  // what": "//"},
    ),
    "sums are added up before they have arrived": (SHARED, {"mbarrier_wait_parity(arrived, 0);": ""}),
    "a row's last columns are those of another box": (
        RIGHT_EDGE,
        {"(at - first_piece(box) * 8) * 2": "at % kBoxColumns * 2"},
    ),
    "leftover rows' chunks are written over before they are read": (
        LEFT_OVER,
        {"__syncthreads();  // the last chunk is read": ""},
    ),
    "a block ends while others send": (
        SHARED,
        {"  if (of.cluster_size * of.split_k > 1) {\n    cluster_arrive_relaxed();": "  if (false) {"},
    ),
}
"""One of each kind of mistake: each compiles the kernel anew."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(folder: Path, fault: str, tmp_path: Path) -> None:
    """Or these tests would say nothing."""
    (problem, launch), changes = FAULTS[fault]
    spoilt(folder, tmp_path, "matmul", changes)
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        for seed in SEEDS:
            check(tmp_path, problem, launch, seed)
