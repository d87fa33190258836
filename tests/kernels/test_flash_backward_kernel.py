"""attention_backward's cuda_flash itself, on a CPU: compiled against an emulated multiprocessor."""

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernel_pipeline import loading
from kernels.attention.parameters import Problem, tile_columns
from kernels.attention_backward import tolerance
from kernels.attention_backward.parameters import CUDA_TILES
from tests.kernels.agreement import agree
from tests.kernels.compiled import answer, emulated, program, spoilt

pytestmark = pytest.mark.slow

BACKWARD = loading.load("attention_backward")
CPU = torch.device("cpu")
ELEMENTS = {"bfloat16": "kBFloat16", "float16": "kFloat16"}


@dataclasses.dataclass(frozen=True)
class Launch:
    """How it is launched: queries of a tile, pipeline stages; key heads that the schedule goes through at
    once; parts of dq in turns or as they come; blocks of the grid, of which the emulator runs one after the
    other, so that in turns there is one alone; parts of a block of keys."""

    block_m: int = 64
    stages: int = 2
    at_once: int = 1
    deterministic: bool = False
    grid: int = 1
    split: int = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which the kernel's includes find the emulated multiprocessor."""
    headers = ("flash_kernel.cuh", "flash_products.cuh", "flash_rows.cuh", "flash_layout.h")
    return emulated(
        tmp_path_factory.mktemp("emulated"),
        {"attention_backward": headers, "include": ["wgmma_descriptors.h"]},
        {
            "hopper.h": (
                *("include/common.cuh", "include/tma.cuh", "include/wgmma.cuh"),
                "matmul/widened.cuh",
            ),
            "bulk.h": ("include/bulk_reduce.cuh", "attention_backward/wgmma_80.cuh"),
        },
    )


def run(problem: Problem, launch: Launch) -> str:
    """In C++."""
    element = ELEMENTS[problem.dtype]
    columns = tile_columns(problem.head_dim)
    return f"run<Element::{element},{columns},{launch.block_m},{launch.stages}>"


Gradients = tuple[torch.Tensor, ...]


def gradients(
    folder: Path,
    problem: Problem,
    inputs: Gradients,
    launch: Launch,
    seed: int,
    runs: Sequence[str] | None = None,
) -> Gradients:
    """dq, dk and dv by the kernel, which ends. The program has these runs, or its own alone."""
    q, k, v, out, lse, d_out = inputs
    dimensions = [
        problem.batch,
        problem.heads,
        problem.kv_heads,
        problem.seq_q,
        problem.seq_k,
        int(problem.causal),
    ]
    own = run(problem, launch)
    runs = [own] if runs is None else runs
    path = program(folder / "run" / "flash_backward.cpp", RUNS=",".join(runs))
    chosen = [launch.at_once, int(launch.deterministic), seed, problem.head_dim, launch.grid, launch.split]
    made = answer(path, (q, k, v, out, d_out, lse), [runs.index(own), *dimensions, *chosen])
    parts = torch.split(made, [q.numel(), k.numel(), v.numel()])
    return tuple(part.view(x.shape) for part, x in zip(parts, (q, k, v), strict=True))


def check(
    folder: Path, problem: Problem, launch: Launch, seed: int, runs: Sequence[str] | None = None
) -> None:
    """The kernel gives the reference's answer, and ends."""
    inputs = BACKWARD.inputs(problem, CPU, seed)
    made = gradients(folder, problem, inputs, launch, seed, runs)
    for out, exact, allowed in zip(made, BACKWARD.expected(problem, inputs), tolerance(problem), strict=True):
        agree(out, exact, allowed)


# The lowest two bits of a seed say whether copies and wgmmas are as early as they may be, or as late. With
# the third bit some warp is behind the others.
BASE = Problem(
    batch=1, heads=2, kv_heads=1, seq_q=150, seq_k=289, head_dim=128, causal=True, dtype="bfloat16"
)


@pytest.mark.parametrize(("stages", "seed"), [(2, 0), (3, 3), (3, 5), (2, 6)])
def test_heads_share_keys(folder: Path, stages: int, seed: int) -> None:
    """A block takes three blocks of keys after the other, and goes through the tiles of two heads, whose
    lengths are no multiples of a tile."""
    launch = Launch(stages=stages, deterministic=seed in (3, 6))
    check(folder, dataclasses.replace(BASE, causal=seed < 6), launch, seed)


@pytest.mark.parametrize("grid", [2, 4])
def test_blocks_share_the_keys(folder: Path, grid: int) -> None:
    """The first block takes all places but those with which the others begin."""
    check(folder, dataclasses.replace(BASE, heads=2, kv_heads=2, seq_q=100), Launch(grid=grid), 3)


@pytest.mark.parametrize("split", [2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_parts_of_the_heads_of_a_key_head(folder: Path, split: int, causal: bool) -> None:
    """Each part has blocks of its own, whose gradients of keys are added."""
    problem = dataclasses.replace(BASE, batch=2, heads=8, kv_heads=2, seq_q=70, seq_k=130, causal=causal)
    check(folder, problem, Launch(split=split, deterministic=causal), 3)


@pytest.mark.parametrize("split", [3, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_parts_of_the_queries_of_a_head(folder: Path, split: int, causal: bool) -> None:
    """A part begins and ends within a head's queries. With a mask the last parts of some keys have none."""
    problem = dataclasses.replace(BASE, batch=2, seq_q=200, seq_k=300, causal=causal)
    assert problem.group == 2
    check(folder, problem, Launch(split=split, grid=3), 3)


EVERY = [
    (
        Problem(
            batch=2, heads=1, kv_heads=1, seq_q=97, seq_k=200, head_dim=head_dim, causal=causal, dtype=dtype
        ),
        Launch(block_m, stages, at_once=2, deterministic=causal),
    )
    for head_dim, tiles in CUDA_TILES.items()
    for block_m, stages in tiles
    for dtype, causal in (("bfloat16", False), ("float16", True))
]
EVERY_RUN = list(dict.fromkeys(run(*one) for one in EVERY))
"""One program has all of them: most of a compiler's time goes to what they have in common."""


@pytest.mark.xdist_group("emulated flash backward")
@pytest.mark.parametrize(("problem", "launch"), EVERY, ids=str)
def test_every_tile(folder: Path, problem: Problem, launch: Launch) -> None:
    check(folder, problem, launch, 3, EVERY_RUN)


def test_large_scores(folder: Path) -> None:
    """Probabilities are those of a real forward pass, of scores that overflow without their logarithms. Keys
    past the end, whose scores are 0, would overflow too."""
    problem = dataclasses.replace(BASE, heads=1, seq_k=200)
    q, k, v, _, _, d_out = BACKWARD.inputs(problem, CPU, 0)
    q, k = -6 * q.abs(), 6 * k.abs()
    scores = (q.double() @ k.double().mT) / problem.head_dim**0.5
    hidden = torch.ones(scores.shape[2:], dtype=torch.bool).triu(problem.seq_k - problem.seq_q + 1)
    scores.masked_fill_(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    assert lse.max() < -100
    out = (scores.softmax(-1) @ v.double()).to(q.dtype)
    inputs = q, k, v, out, lse.float(), d_out
    made = gradients(folder, problem, inputs, Launch(), 0)
    for x, exact in zip(made, BACKWARD.expected(problem, inputs), strict=True):
        assert (x.double() - exact).norm() < 0.02 * exact.norm()


def test_rows_without_a_probability(folder: Path) -> None:
    """A row whose logarithm is -inf has seen no key: it changes no gradient, and its own is 0."""
    problem = dataclasses.replace(BASE, causal=False)
    q, k, v, out, lse, d_out = BACKWARD.inputs(problem, CPU, 0)
    lse[:, :, 30:100] = -torch.inf
    made = gradients(folder, problem, (q, k, v, out, lse, d_out), Launch(), 1)
    exact = BACKWARD.expected(problem, (q, k, v, out, lse.masked_fill(lse.isinf(), torch.inf), d_out))
    for x, wanted, allowed in zip(made, exact, tolerance(problem), strict=True):
        agree(x, wanted, allowed)
    assert not made[0][:, :, 30:100].any()


RELEASE_QUERIES = "      release(&stage.q_empty);\n"
BARRIER = "      named_barrier_sync(kGradientsAreThere, kWarpgroups * kWarpgroup);\n"
FAULTS = {
    "d_out is read before it is there": {"mbarrier_wait_parity(&stage.d_out_full, next.parity);": ""},
    "queries are given back before they are used": {RELEASE_QUERIES: "", BARRIER: RELEASE_QUERIES + BARRIER},
    "gradients of scores are read before they are there": {BARRIER: ""},
    "gradients of scores are written while others read them": {"gradient_stage ^= 1;": ""},
    "a part of dq is written before the one before is read": {"bulk_wait_group_read<0>();": ""},
    "no score is masked": {"scores[i / 2 * 4 + half * 2 + i % 2] = 0.0f;": ""},
    "keys are overwritten before all warps have read them": {
        "mbarrier_wait_parity(&barriers->keys_empty[next.stage], next.parity ^ 1);": ""
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(folder: Path, fault: str, tmp_path: Path) -> None:
    """Or these tests would say nothing."""
    spoilt(folder, tmp_path, "attention_backward", FAULTS[fault])
    several = dataclasses.replace(BASE, heads=1, seq_q=200, seq_k=500)
    one = dataclasses.replace(several, seq_q=60, seq_k=1000, causal=False)  # tile for each block of keys
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        for problem, seed in ((several, 2), (several, 3), (several, 6), (several, 7), (one, 6), (one, 7)):
            check(tmp_path, problem, Launch(), seed)


FAULTS_OF_PARTS = {
    "a part reads another key head": {"kv_head - entry * (of.heads / of.group)": "0"},
    "only the first part counts": {"part < parts": "part < 1"},
    "a part without steps is added": {"part < parts": "part < of.split"},
    "a part begins with its head's first tile": {" + steps.first % of_head": ""},
    "a part is added twice": {", from += of.of_head": ""},
}


@pytest.mark.parametrize("fault", FAULTS_OF_PARTS)
def test_a_fault_of_parts_shows(folder: Path, fault: str, tmp_path: Path) -> None:
    spoilt(folder, tmp_path, "attention_backward", FAULTS_OF_PARTS[fault])
    problem = dataclasses.replace(BASE, heads=4, kv_heads=2, seq_k=160)
    with pytest.raises(AssertionError):
        check(tmp_path, problem, Launch(split=4), 3)
