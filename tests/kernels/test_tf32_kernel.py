"""cuda_wgmma_tf32's kernels themselves, on a CPU: compiled against an emulated multiprocessor."""

import subprocess
from pathlib import Path

import pytest
import torch

from kernel_pipeline import loading
from kernels.matmul.problem import Problem, tolerance
from tests.kernels.agreement import agree
from tests.kernels.compiled import answer, emulated, program, spoilt

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("emulated tf32")]

MATMUL = loading.load("matmul")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which the kernel's includes find the emulated multiprocessor."""
    return emulated(
        tmp_path_factory.mktemp("tf32"),
        {"matmul": ("tf32_kernel.cuh", "wgmma_layout.h"), "include": ["wgmma_descriptors.h"]},
        {
            "hopper.h": ("include/common.cuh", "include/tma.cuh", "include/wgmma.cuh"),
            "tf32.h": ["matmul/wgmma_tf32.cuh"],
        },
    )


def check(folder: Path, sizes: tuple[int, int, int], layout: str, block_n: int, grid: int, seed: int) -> None:
    """The kernel gives the reference's answer, and ends."""
    m, n, k = sizes
    problem = Problem(m=m, n=n, k=k, dtype="float32", layout=layout, arithmetic="tf32")
    inputs = MATMUL.inputs(problem, CPU, seed)
    given = [x if lies == "n" else x.t() for x, lies in zip(inputs, layout, strict=True)]
    out = answer(
        program(folder / "run" / "tf32.cpp"), given, [m, n, k, layout, block_n, grid, seed], timeout_s=240
    )
    (exact,) = MATMUL.expected(problem, inputs)
    agree(out.view(m, n), exact, tolerance(problem))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("sizes", "layout", "block_n", "grid"),
    [
        # A block takes several tiles, the last of few rows and columns; more steps than buffers; pairs and
        # single columns; rows along k that need no copy, a copy, or to be transposed.
        ((140, 136, 68), "nt", 128, 1),
        ((70, 133, 41), "nt", 128, 2),
        ((130, 260, 70), "nn", 256, 1),
        ((1, 3, 5), "tn", 256, 1),
        ((33, 130, 230), "tt", 128, 1),
    ],
    ids=str,
)
def test_a_product(
    folder: Path, sizes: tuple[int, int, int], layout: str, block_n: int, grid: int, seed: int
) -> None:
    check(folder, sizes, layout, block_n, grid, seed)


FAULTS = {
    "wgmma_wait_group<1>();": "",
    "mbarrier_wait_parity(&empty[stage], parity ^ 1);": "",
    "mbarrier_wait_parity(&full[stage], parity);": "",
    "buffer > 0 || step > 0": "step > 0",
    "column + 1 < of.n": "true",
    "square[x][i]": "square[i][x]",
}


@pytest.mark.parametrize("before", FAULTS)
def test_a_fault_shows(folder: Path, tmp_path: Path, before: str) -> None:
    """Or these tests would say nothing."""
    spoilt(folder, tmp_path, "matmul", {before: FAULTS[before]})
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        for seed in range(8):
            check(tmp_path, (130, 133, 270), "nn", 128, 1, seed)
