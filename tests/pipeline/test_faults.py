"""How a sweep treats providers that fail, being killed, and a full disk, tested with real commands in a
copy of the tree."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.points import notation
from tests.planted.tree import Tree, cpu_tree, size

FAR_TOO_LARGE = 10**14

STATUSES = {
    "right": ("ok", None),
    "talkative": ("ok", None),
    "wrong": ("incorrect", "first call: 1 of 64 elements are wrong, the first at (63,): "),
    "nan": ("incorrect", "first call: 1 of 64 elements are wrong, the first at (3,): nan, not "),
    "right_once": ("incorrect", "on other inputs: 64 of 64 elements are wrong"),
    "writes_once": ("incorrect", "on other inputs: "),
    "remembers": ("incorrect", "on other inputs: "),
    "never_writes": ("incorrect", "first call: 64 of 64 elements are wrong, the first at (0,): nan, not "),
    "changes_input": ("incorrect", "first call: changed its input"),
    "wrong_dtype": ("incorrect", "first call: dtype is torch.float64, not torch.float32"),
    "wrong_shape": ("incorrect", "first call: shape is (1, 64), not (64,)"),
    "returns_none": ("incorrect", "first call: returned NoneType, not a plain tensor"),
    "endless": ("timeout", "no answer in 4 s; its worker was replaced"),
    "raises": ("runtime_error", "RuntimeError: it broke in two lines"),
    "exits": ("runtime_error", "the worker exited with 3"),
    "is_killed": ("runtime_error", "the worker was killed by SIGKILL"),
    "segfaults": ("runtime_error", "the worker was killed by SIGSEGV"),
    "memory_error": ("out_of_memory", "MemoryError"),
    "allocates": ("out_of_memory", "can't allocate memory"),
    "right_at_the_end": ("ok", None),
}


of_faulty = pytest.mark.xdist_group("faulty")
"""Puts tests into one group, because they share one sweep."""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, str]:
    """Sweep every planted provider at a size that fits and at one that exceeds any memory. Return the tree
    and the output. The segmentation fault of one provider occurs only the first time."""
    tree = cpu_tree(tmp_path_factory.mktemp("faulty"), "faulty")
    torch = tree.root / "kernels" / "faulty" / "torch.py"
    once = "Path('once').exists() or Path('once').touch() or ctypes.string_at(0)\n    return x * 2"
    torch.write_text(torch.read_text().replace("ctypes.string_at(0)\n    return x", once))
    said = tree.run("kernel=faulty", f"size=[64,{FAR_TOO_LARGE}]", "point_timeout_s=4")
    assert tree.workers() == []
    return tree, said


@pytest.mark.slow
@of_faulty
def test_a_fault_gets_its_status_and_no_number_and_the_sweep_goes_on(faulty: tuple[Tree, str]) -> None:
    tree, _ = faulty
    rows = {(row.point.provider, size(row.point)): row for row in tree.rows("faulty")}
    assert set(rows) == {(provider, size) for provider in STATUSES for size in (64, FAR_TOO_LARGE)}
    for provider, (status, error) in STATUSES.items():
        row = rows[provider, 64]
        assert row.outcome.status == status, provider
        if error is None:
            assert row.outcome.error is None, provider
            assert row.outcome.timing is not None
            assert row.outcome.timing.median_us > 0
        else:
            assert row.outcome.error is not None, provider
            assert error in row.outcome.error
            assert "\n" not in row.outcome.error
            assert (row.outcome.timing, row.outcome.state, row.rate) == (None, None, None)
    for provider in STATUSES:
        outcome = rows[provider, FAR_TOO_LARGE].outcome
        assert outcome.status == "out_of_memory", provider
        assert outcome.error is not None
        # The check precedes any allocation, so it also fails providers that would not run out of memory.
        assert outcome.error.startswith("needs about 5600000 GB for inputs and reference; ")


@pytest.mark.slow
@of_faulty
def test_a_failure_that_may_pass_is_tried_again_three_times_and_others_when_told_to(
    faulty: tuple[Tree, str], tmp_path: Path
) -> None:
    original, said = faulty
    tree = original.copy(tmp_path)
    some = ("segfaults", "is_killed", "wrong", "raises")
    words = ("kernel=faulty", "size=64", f"provider=[{','.join(some)}]")

    def fates() -> dict[str, tuple[str, int]]:
        rows = (row for row in tree.rows("faulty") if size(row.point) == 64)
        return {
            row.point.provider: (row.outcome.status, row.attempts)
            for row in rows
            if row.point.provider in some
        }

    def swept(*options: str) -> tuple[dict[str, tuple[str, int]], str]:
        printed = tree.run(*words, *options)
        return fates(), printed

    known = {"wrong": ("incorrect", 1), "raises": ("runtime_error", 1)}
    assert fates() == {**known, "segfaults": ("runtime_error", 1), "is_killed": ("runtime_error", 1)}
    counts = f"{2 + len(STATUSES)} out_of_memory, 3 runtime_error, 1 timeout"
    passing = f"{6 + len(STATUSES)} points failed in a way that may pass ({counts}): the next run tries them"
    assert f"{passing} again, 3 runs in all." in said
    wrong = sum(status == "incorrect" for status, _ in STATUSES.values())
    assert f"{wrong + 1} points failed and will not be tried again, unless you write retry=failed." in said

    # Pretend that another run has tried this point a second time without success.
    path = tree.ledger("faulty")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all("attempts" not in line for line in lines), (
        "a first attempt's line is as before there were others"
    )
    for line in lines:
        if line["point"]["provider"] == "is_killed":
            line["attempts"] = 2
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, said = swept()
    assert "2 points measured" in said
    assert found == {**known, "segfaults": ("ok", 2), "is_killed": ("runtime_error", 3)}
    assert "may pass" not in said
    assert "3 points failed and will not be tried again" in said

    found, said = swept("retry=failed")
    assert "3 points measured" in said
    assert found == {
        "segfaults": ("ok", 2),
        "is_killed": ("runtime_error", 4),
        "wrong": ("incorrect", 2),
        "raises": ("runtime_error", 2),
    }


QUICK = ("kernel=quick", f"size=[{','.join(map(str, range(1, 11)))}]", "timing.cache=hot")
POINTS = 20


def lines(tree: Tree) -> int:
    """Return the number of complete lines in quick's ledger."""
    return sum(
        path.read_bytes().count(b"\n") for path in (tree.root / "outputs").glob("timings/quick/*.jsonl")
    )


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait until the condition holds or the process has ended."""
    while process.poll() is None and not condition():
        time.sleep(0.002)


def all_gone(tree: Tree) -> bool:
    """Return whether the tree's workers end by themselves within 30 seconds."""
    patience = time.monotonic() + 30
    while tree.workers() and time.monotonic() < patience:
        time.sleep(0.02)
    return not tree.workers()


@pytest.mark.slow
def test_a_sweep_that_is_killed_at_its_start_and_midway_ends_complete(tmp_path: Path) -> None:
    dice = random.Random(0)
    tree = cpu_tree(tmp_path, "quick")
    kept = 0
    for is_midway in (False, True):
        process = tree.start(*QUICK, "wait_s=0")
        if is_midway:
            enough = dice.randrange(1, 10)
            until(lambda wanted=enough: lines(tree) >= wanted, process)  # type: ignore[misc]
        else:
            time.sleep(dice.uniform(0, 2.5))
        process.kill()
        _, errors = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), errors
        assert all_gone(tree), "a worker outlived its sweep"
        assert lines(tree) >= kept, "a measured point was lost"
        kept = lines(tree)
    assert kept > 0
    tree.run(*QUICK, "wait_s=0")
    rows = tree.rows("quick")
    assert len(rows) == len({row.point for row in rows}) == POINTS
    assert {row.outcome.status for row in rows} == {"ok"}
    ledger = tree.ledger("quick")
    beside = {path.name for path in ledger.parent.iterdir() if path.name.startswith(".")}
    assert beside == {f".{ledger.name}.lock"}, "no temporary file is left"


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_worker_that_hangs_ends_with_its_sweep(tmp_path: Path, stop: signal.Signals) -> None:
    tree = cpu_tree(tmp_path, "faulty")
    process = tree.start("kernel=faulty", "provider=endless", "timing.cache=hot", "point_timeout_s=600")
    until((tree.root / "endless").exists, process)
    process.send_signal(stop)
    try:
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (-stop if stop is signal.SIGKILL else 128 + stop)
    assert all_gone(tree)


@pytest.mark.parametrize(
    ("stop", "moment"),
    [
        (signal.SIGINT, "while it imports"),
        pytest.param(signal.SIGINT, "while it measures", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, "while it measures", marks=pytest.mark.slow),
    ],
)
def test_a_sweep_that_is_stopped_says_so_in_a_line_and_keeps_what_was_measured(
    tmp_path: Path, stop: signal.Signals, moment: str
) -> None:
    tree = cpu_tree(tmp_path, "quick")
    process = tree.start(*QUICK)
    maps = Path(f"/proc/{process.pid}/maps")
    moments: dict[str, Callable[[], object]] = {
        "while it imports": lambda: "pydantic_core" in maps.read_text(),
        "while it measures": lambda: lines(tree),
    }
    until(moments[moment], process)
    if stop is signal.SIGINT:
        os.killpg(process.pid, stop)  # as a terminal does
    else:
        process.send_signal(stop)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + stop, out + err
    assert (out + err).splitlines()[-1].startswith("Stopped.")
    assert "Traceback" not in out + err
    assert all_gone(tree)
    if moment == "while it imports":
        assert out + err == "Stopped.\n"
    if moment == "while it measures":
        rows = tree.rows("quick")
        assert 0 < len(rows) < POINTS
        assert rows == sorted(rows, key=lambda row: (row.point.provider, size(row.point)))
        assert f"{len(rows)} point" in out
        assert f"{len(rows)} of {POINTS} are in outputs/timings/quick/" in out


SWALLOWS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.orig_argv, sys.argv = ["python", "-m", "pipeline.sweep"], ["-m"]
from pipeline.command import interrupt
interrupt.raise_on_interrupt()
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(600)
"""


def test_ctrl_c_that_is_swallowed_ends_a_command_all_the_same() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SWALLOWS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert err == "Stopped. What was measured is kept, and the same command goes on from there.\n"


@dataclass
class Disk:
    """A place for results that soon runs out of space, the system's error message for that, and a way to
    make room."""

    output: str
    full: str
    popen: dict[str, Any]
    make_room: Callable[[], object]


def small_files() -> None:
    """Limit this process's files to 12 KiB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 10, resource.RLIM_INFINITY))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount a file system of 24 KiB. Without the right to mount, limit the size of files instead."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(where)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield Disk("outputs", "File too large", {"preexec_fn": small_files}, lambda: None)
        return
    larger = ["mount", "-o", "remount,size=8m", str(where)]
    yield Disk(
        str(where / "outputs"), "No space left on device", {}, lambda: subprocess.run(larger, check=True)
    )
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_in_one_sentence_and_is_resumed(tmp_path: Path, small_disk: Disk) -> None:
    tree = cpu_tree(tmp_path, "quick")
    output = f"output={small_disk.output}"
    stopped = tree.sweep(*QUICK, output, **small_disk.popen)
    path = tree.ledger("quick", small_disk.output)
    assert stopped.returncode == 2
    assert stopped.stderr.count("\n") == 1, stopped.stderr
    assert stopped.stderr.startswith("error: can't write ")
    assert f": {small_disk.full}. Earlier measurements are kept; make room and run" in stopped.stderr
    kept = path.read_bytes().count(b"\n")
    assert 0 < kept < POINTS
    assert f"{kept} of {POINTS} are in" in stopped.stdout

    small_disk.make_room()
    resumed = tree.sweep(*QUICK, output)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert f"{notation.points(POINTS - kept)} measured" in resumed.stdout, (
        "it went on instead of starting again"
    )
    assert len(tree.rows("quick", small_disk.output)) == POINTS
