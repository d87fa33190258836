"""The facts that the judge learns from a problem's own code, and the verdict of the format's own check."""

import contextlib
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline.judge
from kernel_pipeline.execution.extra_readings import Readings
from kernel_pipeline.execution.protocol import Timed
from kernel_pipeline.execution.provider_runner import summary
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.judging import folder, kernelbench
from kernel_pipeline.judging.facts import Probe
from kernel_pipeline.judging.folder import at
from kernel_pipeline.judging.formats import UnfitError
from kernel_pipeline.judging.kernelbench_code import KernelBenchCode
from kernel_pipeline.judging.probe import facts
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Outcome, State
from kernel_pipeline.records.point import Point
from kernel_pipeline.timing.timers import Samples
from pipeline.command.options import JudgeConfig
from pipeline.command.run import run_stage
from pipeline.verdicts import judged
from pipeline.verdicts.trial_times import by_own_judge
from tests.commands import exit_code
from tests.pipeline.test_judge import SINC


@pytest.mark.slow
def test_without_a_submission_the_own_code_is_verified_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = tmp_path / "sinc.py"
    problem.write_text(SINC)
    real, measured = Supervisor.measure, list[Point]()

    def measure(self: Supervisor, where: str, point: Point, is_audited: bool = False) -> Outcome:
        measured.append(point)
        return real(self, where, point, is_audited)

    monkeypatch.setattr(Supervisor, "measure", measure)
    words = (f"kernel={problem}", f"output={tmp_path}", "n=64", "rounds=0", "device=cpu", "preset=smoke")
    code = exit_code(run_stage, "judge", JudgeConfig, pipeline.judge.run, *words)
    assert (code, "sinc.py: correct" in capsys.readouterr().out) == (0, True)
    assert {one.provider for one in measured} == {"reference"}
    assert len({one.problem for one in measured}) == len(measured) == len(folder.DISTRIBUTIONS)


def kept(tmp_path: Path, problem: str) -> tuple[Path, Values]:
    """Write a problem's folder, and return it with the problem's sizes."""
    (tmp_path / "problem.py").write_text(problem)
    read = kernelbench.problem(tmp_path / "problem.py")
    plan = read.plan({"n": 64}, 1)
    folder.write(tmp_path / "kernel", read, plan, {})
    return tmp_path / "kernel", plan.tests[0]


@pytest.mark.parametrize(
    ("answer", "skipped"),
    [
        ("torch.relu(x)", []),
        ("torch.softmax(x, dim=0)", []),
        # Beyond the range of float32, and not of float64.
        ("2 * x.nan_to_num(3e38)", ["some_nan"]),
    ],
)
def test_nan_and_infinities_are_inputs_where_the_problem_defines_them(
    answer: str, skipped: list[str], tmp_path: Path
) -> None:
    path, sizes = kept(tmp_path, SINC.replace("torch.sinc(x)", answer))
    problems = tuple(at(name, sizes) for name in folder.SPECIAL)
    asked = Probe(folder=path, device="cpu", seed=0, problems=problems)
    found = {}
    for one in problems:
        with contextlib.suppress(UnfitError):
            found[str(one["distribution"])] = facts(asked, one)
    assert [name for name in folder.SPECIAL if name not in found] == skipped
    assert all(isfinite(one.tolerances[0][1]) for one in found.values())


@pytest.mark.parametrize(
    ("line", "mode"),
    [("pass", "train"), ("self.eval()", "eval"), ("self.part = torch.nn.Tanh().eval()", "eval and train")],
)
def test_the_mode_is_the_one_in_which_a_file_leaves_its_module(line: str, mode: str, tmp_path: Path) -> None:
    made = f"    def __init__(self):\n        super().__init__()\n        {line}\n\n    def forward"
    path, sizes = kept(tmp_path, SINC.replace("    def forward", made))
    assert KernelBenchCode(path).mode(sizes, torch.device("cpu")) == mode


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("first call: 3 of 4 elements are wrong", "fails"),
        ("on other inputs: 3 of 4 elements are wrong", "fails"),
        ("after timing: 3 of 4 elements are wrong", "passes"),
        ("timed at 1 us", "passes"),
        (judged.TAMPERED, None),
    ],
)
def test_an_own_check_sees_no_answers_of_timed_calls(error: str, said: str | None) -> None:
    assert judged.own_check(Outcome(status="incorrect", error=error)) == said


@dataclass
class TimesInTurns:
    """A worker whose every timing has these samples in microseconds."""

    device: Device
    samples_us: tuple[float, ...]
    asked: list[object] = field(default_factory=list)

    def readings(self, *request: object, **options: object) -> Readings:
        self.asked.append((request, options))
        if not self.samples_us:
            return Readings(error="it fails")
        timing = summary(Samples("do_bench", self.samples_us, NO_CALLS, NO_CALLS, 0), "cold", NO_CALLS)
        return Readings({"do_bench": [Timed(timing=timing, state=State(), sets=1, took_ms=1)]})


NO_CALLS: Any = None

GPU = Device(kind="cuda", name="x", uuid="GPU-x")


@pytest.mark.parametrize(
    ("device", "samples", "us", "asked"),
    [
        (GPU, (10.0, 11.0, 30.0), 17.0, 1),
        (GPU, (), None, 1),
        (Device(kind="cpu", name="x"), (10.0, 11.0, 30.0), None, 0),
    ],
)
def test_the_time_of_the_own_judge_is_the_mean_on_a_gpu(
    device: Device, samples: tuple[float, ...], us: float | None, asked: int
) -> None:
    worker: Any = TimesInTurns(device, samples)
    point = Point(kernel="kernel", provider="own", problem=Values({"n": 4}))
    assert by_own_judge(worker, "kernel", point) == us
    assert worker.asked == [(("kernel", point, ("do_bench",), 1), {"is_stamped": False})][:asked]
