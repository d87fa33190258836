"""The steps of the matrix product on a CPU: their files compiled against an emulated multiprocessor."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernels.matmul import STEPS
from kernels.matmul.problem import Problem, tolerance
from pipeline.points import catalog
from pipeline.points.plan import Target, plan
from tests.kernels.agreement import agree
from tests.kernels.compiled import NO_PROGRAMS, answer, emulated, program
from tests.kernels.kernel_cases import CPU

pytestmark = pytest.mark.xdist_group("matmul steps")

MATMUL = loading.load("matmul")
SOURCES = {one.name: one.extension or "" for one in STEPS}
LAUNCH = re.compile(r"(\w+<T>)<<<([^>]*)>>>\((.*?)\);", re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which the steps' includes find the emulated multiprocessor. A launch is a call, and each step
    has a namespace of its own, so that one program has all of them."""
    made = emulated(
        tmp_path_factory.mktemp("steps"),
        {"matmul": ("step_vectors.cuh", "step_tensor_map.cuh"), "include": ["wgmma_descriptors.h"]},
        {"step.h": ("include/mma.cuh", "include/tma.cuh", "include/wgmma.cuh", "matmul/step.cuh")},
    )
    for name, source in SOURCES.items():
        text = (loading.ROOT / "matmul" / source).read_text()
        for pattern, becomes in (
            (LAUNCH, r"emulated::launch([&] { \1(\3); }, \2);"),
            (re.compile(r"^namespace matmul {$", re.MULTILINE), f"namespace matmul::{name} {{"),
        ):
            text, found = pattern.subn(becomes, text)
            assert found == 1, source
        (made / "matmul" / source).write_text(text)
    write_steps(made, SOURCES)
    return made


def write_steps(folder: Path, sources: Mapping[str, str]) -> None:
    """Write the header that gives the program its steps, each by its name and file."""
    includes = [f'#include "{source}"' for source in sources.values()]
    each = " ".join(f"STEP({name})" for name in sources)
    text = "\n".join([*includes, f"#define EACH_STEP(STEP) {each}", ""])
    (folder / "matmul" / "steps.h").write_text(text)


def check(folder: Path, name: str, problem: Problem, seed: int) -> None:
    """The step gives the reference's answer, and ends."""
    inputs = MATMUL.inputs(problem, CPU, seed)
    path = program(folder / "run" / "step.cpp")
    out = answer(path, inputs, [problem.m, problem.n, problem.k, seed, problem.dtype, name])
    (exact,) = MATMUL.expected(problem, inputs)
    agree(out.view(problem.m, problem.n), exact, tolerance(problem))


@pytest.mark.parametrize(
    ("shape", "dtype", "seed"),
    [
        # Less than a tile; several tiles, with a rest of each dimension; no vector fits into a row.
        ((1, 8, 8), "bfloat16", 0),
        ((37, 40, 24), "float32", 1),
        ((131, 136, 200), "bfloat16", 5),
        ((131, 136, 200), "float16", 6),
        ((129, 133, 37), "float32", 5),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", SOURCES)
def test_a_step_multiplies(
    folder: Path, name: str, shape: tuple[int, int, int], dtype: str, seed: int
) -> None:
    m, n, k = shape
    problem = Problem(m=m, n=n, k=k, dtype=dtype)
    if reason := MATMUL.kernel.provider(name).fits(problem, None, None):
        pytest.skip(reason)
    check(folder, name, problem, seed)


@pytest.mark.parametrize("name", SOURCES)
def test_a_step_has_at_most_120_lines(name: str) -> None:
    assert (loading.ROOT / "matmul" / SOURCES[name]).read_text().count("\n") <= 120


@pytest.mark.parametrize("preset", ["quick", "broad", "standard"])
def test_a_preset_measures_the_steps_only_by_name(preset: str) -> None:
    on = Target("cuda", Gpu((9, 0), 132, 232448, 60 << 20))
    entry = catalog.find("matmul")
    assert not {point.provider for point in plan(entry, preset, on).points} & SOURCES.keys()
    assert {point.provider for point in plan(entry, preset, on, {}, [*SOURCES]).points} == SOURCES.keys()


BARRIER = "    __syncthreads();  // before the next step overwrites what others may still read"
FAULTS = [
    ("step_block_1d", BARRIER, ""),
    ("step_block_1d", "sums[r] += tile_of_a[top + r][i]", "sums[r] += tile_of_a[top + r / 2][i]"),
    ("step_block_1d", "row < of.m && k < of.k", "k < of.k"),
    ("step_block_2d", BARRIER, ""),
    ("step_block_2d", "right < of.n ?", "right <= of.n ?"),
    ("step_block_2d", "column = first_column + x + c * kApart", "column = first_column + x + c"),
    ("step_vector_loads", BARRIER, ""),
    ("step_vector_loads", "&tile_of_a[i][y + kHalf]", "&tile_of_a[i][y]"),
    ("step_vector_loads", "row < of.m && column < of.n", "row < of.m"),
    ("step_warp_tile", BARRIER, ""),
    ("step_warp_tile", "lane / kLanesAcross * kVector", "lane / kLanesDown * kVector"),
    ("step_warp_tile", "start + below < of.k &&", ""),
    ("step_mma", "    __syncthreads();", ""),
    ("step_mma", "cp_async_wait_group<kStages - 2>", "cp_async_wait_group<kStages - 1>"),
    ("step_mma", "buffers[(stage + kStages - 1) % kStages]", "buffers[stage]"),
    ("step_mma", "b[c / 2][c % 2 * 2 + 1]", "b[c / 2][c % 2 * 2]"),
    ("step_wgmma", "wgmma_wait_group<1>", "wgmma_wait_group<2>"),
    ("step_wgmma", "    __syncthreads();   ", ""),
    ("step_wgmma", "step / kStages % 2", "0"),
    ("step_wgmma", "step - 1 + kStages < steps", "step + kStages < steps"),
]


@pytest.fixture(scope="module")
def faulty(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of a program whose steps have one fault each, in a namespace of its own."""
    made = tmp_path_factory.mktemp("faults")
    shutil.copytree(folder, made, dirs_exist_ok=True, ignore=NO_PROGRAMS)
    for number, (name, before, after) in enumerate(FAULTS):
        text = (folder / "matmul" / SOURCES[name]).read_text()
        assert text.count(before) == 1
        text = text.replace(before, after)
        for begin, end in (("namespace matmul::", " {"), ("MATMUL_STEP(", ",")):
            assert text.count(f"{begin}{name}{end}") == 1
            text = text.replace(f"{begin}{name}{end}", f"{begin}fault_{number}{end}")
        (made / "matmul" / f"fault_{number}.cu").write_text(text)
    write_steps(made, {f"fault_{number}": f"fault_{number}.cu" for number in range(len(FAULTS))})
    return made


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_fault_shows(faulty: Path, number: int) -> None:
    """Or these tests would say nothing."""
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        for seed in range(8):
            check(faulty, f"fault_{number}", Problem(m=131, n=136, k=264, dtype="bfloat16"), seed)
