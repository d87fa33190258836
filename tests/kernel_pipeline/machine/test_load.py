"""The load of other processes on a device, by planted counters and by those of this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernel_pipeline.machine import load
from kernel_pipeline.machine.load import Scheduled, Stolen

SPIN = "print(flush=True)\nwhile True: pass"


@contextmanager
def spinning(core: int, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run ``count`` busy processes on one core."""
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            one = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
            stack.callback(one.communicate)
            stack.callback(one.kill)
            assert one.stdout is not None and one.stdout.readline() == b"\n"
            os.sched_setaffinity(one.pid, {core})
            started.append(one)
        yield started


def test_threads_between_two_looks_are_added_up() -> None:
    before = {1: Scheduled(100.0, 50.0, 3), 2: Scheduled(10.0, 10.0, 1), 3: Scheduled(500.0, 0.0, 9)}
    after = {1: Scheduled(160.0, 70.0, 4), 2: Scheduled(10.0, 10.0, 1), 4: Scheduled(10.0, 10.0, 2)}
    assert load.scheduled(before, after) == Scheduled(70.0, 30.0, 3), "one is new, and one is gone"
    assert load.scheduled(before, after).delay == pytest.approx(0.3)
    assert Scheduled().delay == 0.0, "nobody wanted a core"


def test_a_process_that_shares_its_core_is_seen_to_wait() -> None:
    """Each of three processes on one core gets at most a third of it, whatever other load there is."""
    with spinning(min(os.sched_getaffinity(0)), 3) as processes:
        pid = processes[0].pid
        before = after = load.threads_of(pid)
        if not before or not any(one.ran_us for one in before.values()):
            pytest.skip("this kernel does not count it")
        while load.scheduled(before, after).ran_us < 200_000:
            after = load.threads_of(pid)
        found = load.scheduled(before, after)
    assert found.delay > 0.3
    assert found.switches > 0


def test_what_a_host_stole_is_that_of_the_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(load, "STAT", stat)
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda pid: {1})
    columns = "100 0 50 800 10 0 0 40 7 7"
    stat.write_text(f"cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 9 9 9 9 9 9 9 999 9 9\ncpu1 {columns}\nintr 5 5\n")
    assert load.stolen() == Stolen(40, 1000)
    later = Stolen(50, 1100)
    assert later.since(load.stolen()) == Stolen(10, 100)
    assert later.since(load.stolen()).share == 0.1
    stat.unlink()
    assert load.stolen() == Stolen() and Stolen().share == 0.0


def test_whoever_computes_on_a_gpu_and_is_not_ours_is_a_stranger() -> None:
    own = frozenset({10, 11})
    assert load.strangers(frozenset({7, 10}), own, measuring=True) == {7}
    assert load.strangers(frozenset({7, 8}), own, measuring=False) == {7, 8}
    assert load.strangers(frozenset({7, 8}), own, measuring=True) == set(), "7 and 8 may be ours"
    assert load.strangers(frozenset(), own, measuring=True) == set()


def test_processes_on_a_gpu_are_those_that_the_driver_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(handle: str) -> list[SimpleNamespace]:
        if handle != "handle of GPU-planted":
            raise load.pynvml.NVMLError(load.pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=10)]

    monkeypatch.setattr(load.pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(load.pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: f"handle of {uuid}")
    monkeypatch.setattr(load.pynvml, "nvmlDeviceGetComputeRunningProcesses", listed)
    assert load.on_gpu("GPU-planted") == {7, 10}
    assert load.on_gpu("GPU-silent") == set(), "it does not tell"


def test_a_family_is_a_process_with_all_that_it_has_started() -> None:
    with spinning(min(os.sched_getaffinity(0)), 1) as (child,):
        assert {os.getpid(), child.pid} <= load.family(os.getpid())
    assert child.pid not in load.family(os.getpid())
