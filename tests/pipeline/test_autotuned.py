"""Autotuned kernels, kernels with heuristics, and calls of several kernels: verified by Triton's interpreter,
compiled ahead and listed, without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine import device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline import codegen
from pipeline.command.options import CodegenConfig
from pipeline.command.run import run_each
from pipeline.inspection import programs
from tests.commands import exit_code
from tests.planted.autotuned import FAULTY, RIGHT, WRONG
from tests.planted.tree import PLANTED, ROOT

FOLDER = PLANTED / "autotuned"

# Most tests read one process's outcomes or programs.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("autotuned")]


def point(provider: str, columns: int = 100, dtype: str = "float32") -> Point:
    problem = Values({"rows": 5, "columns": columns, "dtype": dtype})
    return Point(kernel="autotuned", provider=provider, problem=problem, parameters=Values())


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """The outcome of each provider under the interpreter."""
    settings = TimingSettings(stopping="count", min_samples=3, cache="hot")
    with Supervisor(device.cpu(), settings, seed=0, timeout_s=120.0) as worker:
        return {name: worker.measure(str(FOLDER), point(name, 200)) for name in (*RIGHT, *WRONG, *FAULTY)}


@pytest.mark.parametrize("provider", RIGHT)
def test_right_providers_are_verified(provider: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[provider].status == "verified", outcomes[provider]


@pytest.mark.parametrize("provider", WRONG)
def test_wrong_providers_are_incorrect(provider: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[provider].status == "incorrect", outcomes[provider]


def test_a_heuristic_of_a_value_that_is_not_chosen_yet_fails_with_its_line(
    outcomes: dict[str, Outcome],
) -> None:
    found = outcomes["inside_out"]
    assert found.status == "runtime_error" and found.error is not None
    assert "autotuned/triton.py:" in found.error and found.error.endswith("KeyError: 'BLOCK'")


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[str, int], programs.CompiledPoint]:
    """The programs of each provider for sm_90, by provider and columns."""
    wanted = dict.fromkeys([*CHOSEN, *((name, 100) for name in (*RIGHT, *FAULTY))])
    found = programs.compile_points(str(FOLDER), [(point(*one), "90") for one in wanted])
    return {(one.point.provider, dict(one.point.problem)["columns"]): one for one in found}


CHOSEN = {
    ("pruned", 100): "autotune, first of 6 after pruning: BLOCK=64 num_warps=2 num_stages=3",
    ("pruned", 256): "autotune, first of 6 after pruning: BLOCK=256 num_warps=2 num_stages=3",
    ("kept", 100): "autotune, first of 6: BLOCK=128 num_warps=2 num_stages=3",
    ("even", 100): "heuristics: BLOCK=64 EVEN=False",
    ("even", 256): "heuristics: BLOCK=64 EVEN=True",
    ("stacked", 100): "autotune, first of 6: BLOCK=128 num_warps=2 num_stages=3; heuristics: EVEN=False",
    ("wrapped", 256): "autotune, first of 6: BLOCK=128 num_warps=2 num_stages=3; heuristics: EVEN=True",
    ("split", 100): None,
}


@pytest.mark.parametrize("one", CHOSEN, ids=str)
def test_the_chosen_values_are_named(
    one: tuple[str, int], compiled: dict[tuple[str, int], programs.CompiledPoint]
) -> None:
    assert {program.chosen for program in compiled[one].programs} == {CHOSEN[one]}


def test_all_kernels_of_a_call_are_compiled(compiled: dict[tuple[str, int], programs.CompiledPoint]) -> None:
    for name in RIGHT:
        symbols = [one.analysis.symbol for one in compiled[name, 100].programs]
        assert len(symbols) == (2 if name == "split" else 1), (name, compiled[name, 100].error)
    assert [one.analysis.symbol for one in compiled["split", 100].programs] == ["_parts", "_reduced"]


def test_an_error_in_a_function_that_a_kernel_calls_has_its_reason(
    compiled: dict[tuple[str, int], programs.CompiledPoint],
) -> None:
    error = str(compiled["broken_helper", 100].error)
    assert "autotuned/triton.py:" in error
    assert error.endswith(
        "`return x * UNKNOWN # noqa: F821`: CompilationError: NameError('UNKNOWN is not defined')"
    )


AHEAD = """
import json, sys
from kernel_pipeline.execution.offline import compile_for, compile_point, only_compile
from kernel_pipeline.records.point import Point

made = []
compile_for(90)
only_compile(lambda compiled: made.append(compiled.metadata.name))
for line in sys.stdin:
    compile_point(sys.argv[1], Point.from_json(line))
print(json.dumps(made))
"""


def test_compiling_ahead_leaves_no_tuned_configuration_behind(tmp_path: Path) -> None:
    """Triton would take the times of the stub for those of a GPU."""
    done = subprocess.run(
        [sys.executable, "-c", AHEAD, str(FOLDER)],
        input="\n".join(point(name).to_json().decode() for name in ("kept", "split")),
        env=os.environ
        | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["_rows", "_parts", "_reduced"]
    assert list(tmp_path.rglob("*.cubin")) and not list(tmp_path.rglob("*.autotune.json"))


@pytest.fixture
def said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs codegen and returns its output."""

    def run(*options: str) -> str:
        problem = ("rows=5", "columns=100", "dtype=float32", "preset=smoke", "device=cpu")
        words = [*problem, f"kernel={FOLDER}", f"output={tmp_path}", f"artifacts={tmp_path}", *options]
        code = exit_code(run_each, "codegen", CodegenConfig, codegen.run, *words)
        out, err = capsys.readouterr()
        assert code == 0, err
        return " ".join(out.split())

    return run


def test_codegen_names_each_kernel_and_the_configuration(said: Any) -> None:
    out = said("provider=[stacked,split]")
    assert "split _parts float32 sm_90" in out and "split _reduced float32 sm_90" in out
    assert (
        "stacked float32 rows=5 columns=100, _either: autotune, first of 6: BLOCK=128 num_warps=2 "
        "num_stages=3; heuristics: EVEN=False"
    ) in out


def test_a_listing_shows_all_kernels_of_a_call(said: Any) -> None:
    both = said("provider=split")
    assert ".entry _parts(" in both and ".entry _reduced(" in both
    only = said("provider=split", "function=_reduced")
    assert ".entry _parts(" not in only and ".entry _reduced(" in only
