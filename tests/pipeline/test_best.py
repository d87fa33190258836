"""``python -m pipeline.results best`` prints the best configuration, the row behind it, and its call."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline import loading, ops, problems
from kernel_pipeline.machine import device
from kernel_pipeline.machine.device import Device
from kernel_pipeline.ops import table_files, tuned
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline import results as command
from pipeline import tune
from pipeline.command.options import ResultsConfig, TuneConfig
from pipeline.command.run import run_stage
from pipeline.inspection.occupancy import limits_of
from pipeline.keys.identity import Identity
from pipeline.points import catalog
from pipeline.reporting import python_call
from pipeline.store import finals, results
from tests import factory
from tests.commands import exit_code
from tests.factory import H100, H200
from tests.planted.tree import PLANTED
from tests.project import python

KERNEL = "softmax"
ENVIRONMENT = factory.environment(H200).replace(
    l2_bytes=50 << 20, multiprocessors=132, shared_memory=227 << 10
)
IDENTITY = Identity(loading.load(KERNEL), ENVIRONMENT, TimingSettings(), 0)
COLUMNS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)
"""Widths at which a matrix does not fit into that L2 cache."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Simulate a machine without a GPU and without tuned tables, in a process that has read none."""
    monkeypatch.setenv(table_files.VARIABLE, str(tmp_path))
    monkeypatch.setattr(device, "gpus", list)
    table_files.read.cache_clear()
    monkeypatch.setattr(table_files, "said", set())
    yield
    table_files.read.cache_clear()


def row(provider: str, columns: int, us: float, dtype: str = "bfloat16", **more: Any) -> Measurement:
    """Return a fresh row."""
    made = factory.measurement(KERNEL, provider, columns, dtype, median_us=us, **more)
    parts = IDENTITY.parts(made.point)
    return made.replace(parts=parts, key=parts.key)


def written(folder: Path, rows: Sequence[Measurement], gpu: str = H200) -> Path:
    factory.write_results(folder, rows)
    path = results.environment_path(folder, gpu)
    path.write_text(ENVIRONMENT.replace(gpu=gpu).to_json().decode())
    return folder


Asked = Callable[..., str]


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """Return a function that runs the command and returns its output, or its error message."""

    def answer(*words: str) -> str:
        names = {word.partition("=")[0] for word in words}
        usual = {"kernel": KERNEL, "output": tmp_path}
        given = [f"{name}={value}" for name, value in usual.items() if name not in names]
        code = exit_code(run_stage, "results", ResultsConfig, command.run, "action=best", *given, *words)
        said = capsys.readouterr()
        assert (code == 2) == bool(said.err)
        return said.err or said.out

    return answer


def lines(text: str) -> Mapping[str, str]:
    """Return the printed values by their names."""
    return dict(re.findall(r"^  (\S+(?: \S+)*) {2,}(\S.*)$", text, re.MULTILINE))


def call(text: str) -> str:
    """Return the printed lines of Python."""
    return text.partition("In Python:\n")[2]


def run_on_cpu(code: str) -> Any:
    """Run the printed lines with the CPU as their device. Return the result."""
    names: dict[str, Any] = {}
    exec(code.replace('"cuda"', '"cpu"'), names)
    return names["y"]


AT_4096 = (
    row("torch", 4096, 30.0),
    row("cuda", 4096, 20.0, block_size=1024, num_warps=4),
    row("cuda", 4096, 20.3, block_size=4096, num_warps=8),
    row("triton_online", 4096, 20.5, block_size=1024, num_warps=4),
    row("quack", 4096, 20.1),
)


def test_it_says_what_is_best_what_is_near_and_the_row_it_rests_on(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, [*AT_4096, row("torch", 1024, 9.0)])
    text = asked("columns=4096")
    assert text.startswith("softmax rows=4096 columns=4096 dtype=bfloat16 on nvidia-h200\n")
    answer = lines(text)
    assert answer["best"] == "cuda 1024x4w"
    assert answer["time"] == "20.0 us by the sweep"
    assert answer["of ceiling"] == "78.6 %: 3355 GB/s, bound by memory"
    assert answer["within 2 %"] == "quack +0.5 %, cuda 4096x8w +1.5 %"
    assert answer["row"] == (
        f"key {AT_4096[1].key} of run {AT_4096[1].origin.run}, commit {factory.COMMIT[:7]}, 2026-11-21: "
        f"{results.ledger_path(tmp_path, KERNEL, H200)}"
    )
    assert "old" not in answer
    monkeypatch.setattr(IDENTITY.__class__, "source", lambda self, provider: "other")
    assert lines(asked("columns=4096"))["old"] == ("the source of softmax/cuda changed")


def test_a_row_of_another_environment_is_old_unless_its_provider_needs_a_package(
    asked: Asked, tmp_path: Path
) -> None:
    """The version of a package on the other machine is unknown here."""
    for provider, is_old in (("torch", True), ("quack", False)):
        made = row(provider, 4096, 20.0)
        parts = made.parts.replace(environment="another")
        written(tmp_path / provider, [made.replace(parts=parts, key=parts.key)])
        answer = lines(asked("columns=4096", f"output={tmp_path / provider}"))
        assert (answer["best"], "old" in answer) == (provider, is_old)


def test_finals_say_which_is_best_of_the_providers_that_were_in_them(asked: Asked, tmp_path: Path) -> None:
    written(tmp_path, AT_4096)
    held = [factory.final(AT_4096[1], 20.6), factory.final(AT_4096[4], 20.4, (AT_4096[1], 20.6, "undecided"))]
    factory.write_finals(tmp_path, held)
    text = asked("columns=4096")
    answer = lines(text)
    assert (answer["best"], answer["time"]) == ("quack", "20.4 us by finals (2 rounds)")
    # The other configuration of cuda and triton_online come from the sweep.
    assert answer["within 2 %"] == "cuda 1024x4w +1.0 %, cuda 4096x8w +1.0 %, triton_online 1024x4w +2.0 %"
    assert f"run {held[1].origin.run}" in answer["row"] and "/finals/" in answer["row"]
    assert answer["kernel_pipeline.ops"].startswith("calls torch: the baseline (torch); ")
    assert 'provider = loaded.kernel.provider("quack")\n' in call(text)
    assert "call = loaded.call(provider, problem, {})\ny = call(*inputs)\n" in call(text)
    finals.path(tmp_path, KERNEL, H200).unlink()
    one = factory.final(AT_4096[1], 19.0)
    factory.write_finals(tmp_path, [one.replace(rounds_us=one.rounds_us[:1])])
    answer = lines(asked("columns=4096"))
    assert (answer["best"], answer["time"]) == ("cuda 1024x4w", "19.0 us by finals (one round)")


def test_a_throttled_time_may_be_the_best_and_another_doubt_is_said_and_loses(
    asked: Asked, tmp_path: Path
) -> None:
    doubted = row("quack", 4096, 10.0, valid=False)
    state = doubted.outcome.state
    assert state is not None
    held_back = doubted.with_state(state.replace(throttle="sw_power_cap"))
    written(tmp_path, [*AT_4096[:4], doubted])
    assert lines(asked())["best"] == "cuda 1024x4w"
    written(tmp_path, [*AT_4096[:4], held_back])
    answer = lines(asked())
    assert (answer["best"], answer["time"]) == ("quack", "at most 10.0 us by the sweep")
    assert answer["not trusted"] == state.invalid_reason


def test_several_problems_are_a_line_each(asked: Asked, tmp_path: Path) -> None:
    rows = [row("torch", 1024, 9.0), row("torch", 1024, 5.0, rows=37), row("torch", 1024, 12.0, "float32")]
    written(tmp_path, [*AT_4096, *rows])
    text = asked("columns=1024,4096", "dtype=bfloat16")
    cells = [re.split(r" {2,}", line.strip()) for line in text.splitlines() if " the sweep" in line]
    assert cells == [
        ["rows=37 columns=1024", "bfloat16", "torch", "5.00", "0.7 %", "0", "the sweep"],
        ["1024", "bfloat16", "torch", "9.00", "43.7 %", "0", "the sweep"],
        ["4096", "bfloat16", "cuda 1024x4w", "20.0", "78.6 %", "2", "the sweep"],
    ]
    assert "In Python" not in text
    text = asked("size=1024", "dtype=float32")
    assert text.startswith("softmax rows=4096 columns=1024 dtype=float32 on nvidia-h200\n")


def tuned_of(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Write a tuned table from a folder's ledgers and let ``kernel_pipeline.ops`` use it."""
    assert exit_code(run_stage, "tune", TuneConfig, tune.run, f"output={folder}", f"gpu={H200}") == 0
    capsys.readouterr()
    monkeypatch.setenv(table_files.VARIABLE, str(results.tuned_path(folder, H200)))


def test_off_the_grid_it_says_by_which_rule_and_what_is_known_at_the_nearest_problem(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = [
        made
        for columns in COLUMNS
        for made in (
            row("torch", columns, columns / 100),
            row("cuda", columns, columns / 200, block_size=4096, num_warps=8),
            row("cuda", columns, columns / 199, block_size=1024, num_warps=4),
        )
    ]
    written(tmp_path, some)
    tuned_of(tmp_path, monkeypatch, capsys)
    text = asked("columns=32000")
    assert text.startswith("softmax rows=4096 columns=32000 dtype=bfloat16 on nvidia-h200\n")
    answer = lines(text)
    assert answer["best"] == "cuda 4096x8w"
    assert answer["chosen by"] == (
        "the rule between tuned problems, which is trusted here (generalised): in nine of ten cases at most "
        "0.0 % over the fastest; softmax was not tuned at this problem."
    )
    assert answer["time"] == (
        "not measured; 164 us by the sweep at rows=4096 columns=32768 dtype=bfloat16, 0.034 doublings away"
    )
    assert answer["within 2 %"] == "there cuda 1024x4w +0.5 %"
    assert some[3 * COLUMNS.index(32768) + 1].key in answer["row"]
    assert "from kernel_pipeline.ops import softmax\n" in call(text)
    loaded = loading.load(KERNEL)
    problem = loaded.kernel.problem(rows=4096, columns=32000, dtype="bfloat16")
    choice = tuned.choose(loaded, problem, limits_of(ENVIRONMENT), H200)
    assert (choice.how, choice.parameters["block_size"]) == ("generalised", 4096)
    text = asked("columns=32000,65536")
    assert "(164)" in text and "generalised" in text and "In brackets: " in text
    on_the_grid = asked("columns=65536")
    assert "from kernel_pipeline.ops import softmax\n" in call(
        on_the_grid
    ) and "kernel_pipeline.ops" not in lines(on_the_grid)


def test_a_guess_is_said_with_its_cost_and_a_default_has_none(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule goes wrong where the fastest configuration changes, so it is followed only far from there."""
    fastest = (10.0, 10.0, 10.0, 10.0, 30.0, 10.0, 30.0, 30.0)
    rows = [
        made
        for columns, us in zip(range(100, 900, 100), fastest, strict=True)
        for made in (
            row("torch", columns, 20.0),
            row("cuda", columns, us, block_size=2048, num_warps=8),
            row("cuda", columns, 13.0, block_size=1024, num_warps=4),
        )
    ]
    written(tmp_path, rows)
    tuned_of(tmp_path, monkeypatch, capsys)
    (region,) = json.loads(results.tuned_path(tmp_path, H200).read_text())["kernels"][KERNEL]["regions"]
    guessed, default = (lines(asked(f"columns={columns}"))["chosen by"] for columns in (150, 750))
    cost = f"{100 * region['regret_p90']:.1f} %"
    assert f"(guessed): in nine of ten cases at most {cost} over the fastest; " in guessed
    assert "(default); " in default and "in nine of ten cases" not in default


def test_a_dtype_that_nobody_measured_is_the_baselines(asked: Asked, tmp_path: Path) -> None:
    written(tmp_path, AT_4096)
    text = asked("columns=4096", "dtype=float16")
    answer = lines(text)
    assert (answer["best"], answer["time"]) == (
        "torch",
        "not measured at any problem with equal words, such as the dtype",
    )
    assert answer["chosen by"] == (
        "the baseline (torch); there is no usable table of tuned configurations for nvidia-h200."
    )
    assert f"holds no {H200}.json; torch is called." in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["column=3"], "unknown option of softmax 'column'. Did you mean 'columns'? Its dimensions: rows, "),
        (["block_size=512"], "block_size: this command finds the parameters itself; leave this option out. "
         "The dimensions of softmax are rows, columns, dtype.\n"),
        (["dtype=bf16"], "dtype: must be one of float32, bfloat16, float16, not bf16.\n"),
        (["gpu=nvidia-h20"], "unknown gpu 'nvidia-h20'. Did you mean 'nvidia-h200'? Known: nvidia-h200.\n"),
        (["rows=5"], "softmax was not measured at rows=5 on nvidia-h200: write columns= too, or values that "
         "were measured: rows=4096.\n"),
        (["kernel=softmx"], "unknown kernel 'softmx'. Did you mean 'softmax'? Known: "),
        (["output=nowhere"], "nowhere has no ledger of softmax: measure the kernel by python -m "
         "pipeline.sweep kernel=softmax, or name another folder by output=.\n"),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_mistake_is_a_sentence_that_says_what_there_is(
    asked: Asked, words: list[str], sentence: str, tmp_path: Path
) -> None:
    written(tmp_path, AT_4096)
    said = asked(*words)
    assert said.startswith(f"error: {sentence}") and said.count("\n") == 1


def test_without_gpu_it_is_this_machines_or_the_only_one_with_rows(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, AT_4096)
    of_cpu = factory.measurement(KERNEL, "torch", 4096, "bfloat16", gpu=factory.CPU)
    factory.write_results(tmp_path, [of_cpu])
    assert " on nvidia-h200\n" in asked()
    assert f" on {factory.CPU}\n" in asked(f"gpu={factory.CPU}")
    factory.write_results(tmp_path, [factory.measurement(KERNEL, "torch", 4096, "bfloat16", gpu=H100)])
    both = f"write gpu=NAME with a machine that has rows: {H100}, {H200}.\n"
    assert asked() == f"error: No GPU is here; {both}"
    monkeypatch.setattr(device, "gpus", lambda: [Device(kind="cuda", name="NVIDIA H200")])
    assert " on nvidia-h200\n" in asked()
    monkeypatch.setattr(device, "gpus", lambda: [Device(kind="cuda", name="NVIDIA L4")])
    said = asked()
    assert said == f"error: This machine's nvidia-l4 has no rows of softmax; {both}"


def test_it_reads_files_and_imports_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(table_files.VARIABLE)
    words = (f"kernel={KERNEL}", "columns=32000", "dtype=bfloat16", f"gpu={H100}")
    done = python("-X", "importtime", "-m", "pipeline.results", "best", *words)
    assert done.returncode == 0 and "y = softmax(x)\n" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pydantic" in imported
    assert imported & {"torch", "pandas", "scipy", "mlflow", "numpy"} == set()


def smallest(name: str) -> Any:
    """Return a small problem of a kernel."""
    entry = catalog.find(name)
    workload = entry.groups("smoke")[0].workloads[0]
    return next(catalog.problems_of(entry, entry.config.workloads[workload], {}))


def shapes(made: Any) -> list[tuple[tuple[int, ...], Any]]:
    return [(tuple(one.shape), one.dtype) for one in loading.as_tuple(made)]


@pytest.mark.parametrize("name", ops.names())
def test_the_printed_call_of_a_function_runs(name: str) -> None:
    entry, problem = catalog.find(name), smallest(name)
    code = python_call.by_function(entry, problem, "cuda")
    assert f"from kernel_pipeline.ops import {name}\n" in code
    assert shapes(run_on_cpu(code)) == list(entry.loaded.outputs(problem))


def test_the_printed_call_names_what_the_problem_says_and_the_tensors_do_not() -> None:
    entry = catalog.find("matmul")
    problem = entry.loaded.kernel.problem(m=16, n=16, k=16, dtype="float32", arithmetic="tf32", layout="nt")
    code = python_call.by_function(entry, problem, "cuda")
    assert code.endswith('\ny = matmul(a, b, *others, arithmetic="tf32")')
    assert shapes(run_on_cpu(code)) == list(entry.loaded.outputs(problem))


@pytest.mark.parametrize(("name", "provider"), [(KERNEL, "torch"), (KERNEL, "manual"), ("sparsify", "torch")])
def test_the_printed_call_of_an_entry_runs(name: str, provider: str) -> None:
    entry, problem = catalog.find(name), smallest(name)
    point = Point(kernel=name, provider=provider, problem=problems.identity_of(problem), parameters=Values())
    assert shapes(run_on_cpu(python_call.by_entry(entry, point, "cuda"))) == list(
        entry.loaded.outputs(problem)
    )


def test_the_printed_call_of_an_entry_prepares_its_weights() -> None:
    entry = catalog.find(str(PLANTED / "linear"))
    problem = Values({"rows": 3, "columns": 8, "dtype": "float32"})
    point = Point(kernel="linear", provider="transposed", problem=problem, parameters=Values())
    assert shapes(run_on_cpu(python_call.by_entry(entry, point, "cuda"))) == [((3, 8), torch.float32)]


def test_the_printed_call_of_an_entry_builds_its_library_first() -> None:
    one = row("cuda", 4096, 20.0, block_size=1024, num_warps=4)
    code = python_call.by_entry(catalog.find(KERNEL), one.point, "cuda")
    assert "from kernel_pipeline.ops import native\n" in code
    assert 'native.load(loaded, "cuda.cu")' in code
    assert code.endswith(
        'call = loaded.call(provider, problem, {"block_size": 1024, "num_warps": 4, "strategy": "auto", '
        '"cluster_size": 0, "stages": 0})\ny = call(*inputs)'
    )
