"""A worker that does not survive its point, hangs or fails: its supervisor has an outcome, and goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import psutil
import pytest

from pipeline import UserError
from pipeline.execution import supervisor
from pipeline.execution.supervisor import Supervisor
from pipeline.machine import device
from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.store.record import Outcome
from pipeline.timing.settings import TimingSettings
from tests.planted import outside

PLANTED = Path(__file__).parents[2] / "planted"
SETTINGS = TimingSettings(stopping="count", min_samples=3, cache="hot")


def faulty(provider: str) -> tuple[str, Point]:
    problem = Values({"elements": 64, "dtype": "float32"})
    return str(PLANTED / "faulty"), Point(kernel="faulty", provider=provider, problem=problem)


@pytest.fixture(scope="module")
def worker() -> Iterator[Supervisor]:
    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=60.0) as made:
        yield made
    assert workers() == []


def workers() -> list[int]:
    """Processes of this one that measure."""
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if "pipeline.execution.worker" in " ".join(child.cmdline())]


def measured(worker: Supervisor, provider: str) -> Outcome:
    return worker.measure(*faulty(provider))


def test_one_worker_answers_as_long_as_it_lives(worker: Supervisor) -> None:
    first = measured(worker, "right")
    assert first.status == "ok"
    assert first.timing is not None
    assert (first.timing.timer, first.timing.n_samples) == ("perf_counter", 3)
    (pid,) = workers()
    for provider, status, error in (
        ("talkative", "ok", None),
        ("wrong", "incorrect", "first call: 1 of 64 elements are wrong"),
        ("remembers", "incorrect", "after timing: "),
        ("raises", "runtime_error", "RuntimeError: it broke in two lines"),
        ("memory_error", "out_of_memory", "MemoryError"),
        ("right", "ok", None),
    ):
        outcome = measured(worker, provider)
        assert outcome.status == status
        assert str(outcome.error).startswith(str(error))
    assert workers() == [pid], "what it survives costs no other process"


def test_a_kernel_that_is_not_there_is_an_outcome(worker: Supervisor) -> None:
    _, point = faulty("right")
    outcome = worker.measure("/no/such/folder", point)
    assert outcome.status == "runtime_error"
    assert str(outcome.error).startswith("FileNotFoundError: ")


def test_in_place_every_call_is_verified_from_restored_inputs(worker: Supervisor) -> None:
    for provider, status in (("returns_it", "ok"), ("returns_nothing", "ok"), ("writes_half", "incorrect")):
        problem = Values({"elements": 100, "dtype": "int32"})
        point = Point(kernel="accumulate", provider=provider, problem=problem)
        outcome = worker.measure(str(PLANTED / "accumulate"), point)
        assert outcome.status == status, outcome.error


def test_a_worker_that_ends_is_said_and_replaced(worker: Supervisor) -> None:
    measured(worker, "talkative")
    (pid,) = workers()
    outcome = measured(worker, "exits")
    said = "the worker exited with 3"
    assert (outcome.status, outcome.error) == ("runtime_error", said), "no words of an earlier point's"
    assert workers() == []
    assert measured(worker, "right").status == "ok"
    assert workers() != [pid]


def test_a_worker_that_hangs_is_given_up(
    worker: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(worker, "right")
    monkeypatch.setattr(worker, "timeout_s", 0.5)
    problem = Values({"n": 8, "dtype": "float32"})
    folder = outside.write(tmp_path)
    (folder / "whole.py").write_text("def double(x):\n    while True:\n        pass\n")
    outcome = worker.measure(str(folder), Point(kernel="double", provider="whole", problem=problem))
    assert (outcome.status, outcome.error) == ("timeout", "no answer in 0.5 s; its worker was replaced")
    assert workers() == []


def test_a_worker_that_can_not_start_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "pipeline" / "execution"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "worker.py").write_text("raise SystemExit('no torch here')")
    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=60.0, root=tmp_path) as broken:
        outcome = measured(broken, "right")
        said = "the worker exited with 1: no torch here"
        assert (outcome.status, outcome.error) == ("runtime_error", said)
        with pytest.raises(UserError, match=rf"^the ceilings of .* could not be measured: {said}\.$"):
            broken.rates()


def test_who_waits_for_an_abandoned_worker_learns_that_it_is_gone() -> None:
    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=60.0) as worker:
        worker.start()
        found: list[Outcome] = []
        waiting = Thread(target=lambda: found.append(measured(worker, "right")))
        waiting.start()
        worker.abandon()
        waiting.join()
    assert [(one.status, one.error) for one in found] == [
        ("runtime_error", "the worker was killed by SIGKILL")
    ]


def test_a_worker_is_told_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    class Popen:
        def __init__(self, words: list[str], env: dict[str, str], **rest: object) -> None:
            seen.append(env)

        def kill(self) -> None:
            pass

        wait = kill

    monkeypatch.setattr(supervisor.subprocess, "Popen", Popen)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    gpu = device.Device(kind="cuda", name="GPU", index=1, uuid="GPU-planted")
    for where in (device.cpu(), gpu):
        with Supervisor(where, SETTINGS, 0, 1.0) as worker:
            worker.start()
    cpu_env, gpu_env = seen
    assert (cpu_env["CUDA_VISIBLE_DEVICES"], cpu_env["TRITON_INTERPRET"]) == ("", "1")
    assert gpu_env["CUDA_VISIBLE_DEVICES"] == "GPU-planted"
    assert "TRITON_INTERPRET" not in gpu_env
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7", "its own environment stays"
