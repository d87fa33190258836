"""What is written reaches the disk: at once where it comes alone, with others where it comes fast."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from pipeline.store import syncing
from pipeline.store.ledger import read_rows
from pipeline.store.syncing import ALONE_S, WAIT_S, Syncing

ROOT = Path(__file__).parents[3]
LONG_S = 30.0


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_comes_now_and_then_is_synced_each_time() -> None:
    clock, synced = Clock(), []
    one = Syncing(lambda: synced.append(clock.now), clock)
    for step in range(3):
        clock.now = 100 + step * ALONE_S * 1.25
        one.wrote()
    assert len(synced) == 3
    one.flush()
    assert len(synced) == 3, "nothing waits"


def test_what_comes_fast_is_synced_together_and_soon() -> None:
    clock, synced, done = Clock(), [], Event()

    def sync() -> None:
        synced.append(clock.now)
        if len(synced) == 2:
            done.set()

    one = Syncing(sync, clock)
    for _ in range(100):
        one.wrote()
    assert len(synced) == 1, "the first one is alone"
    assert done.wait(LONG_S), "the others are synced though nothing more is written"
    assert 2 * WAIT_S <= 0.2, "as a ledger promises"


def test_flush_waits_for_nobody() -> None:
    synced: list[int] = []
    one = Syncing(lambda: synced.append(1), Clock())
    one.wrote()
    one.wrote()
    one.flush()
    assert len(synced) == 2


def test_an_error_of_a_group_is_raised_by_the_next_call() -> None:
    failed, calls = Event(), []

    def sync() -> None:
        calls.append(1)
        if len(calls) > 1:
            failed.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    one = Syncing(sync, Clock())
    one.wrote()
    one.wrote()
    assert failed.wait(LONG_S)
    with pytest.raises(OSError, match="No space left"):
        for _ in range(1000):
            one.wrote()
            one.flush()


APPEND = """
import os, sys, threading
from pathlib import Path
from pipeline.store.ledger import Ledger
from tests import factory
path, end = Path(sys.argv[1]), sys.argv[2]
synced = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
fsync = os.fsync
def counted(descriptor):
    fsync(descriptor)
    found = path.read_bytes() if path.exists() else b""
    os.write(synced, b"%d\\n" % found.count(b"\\n"))
os.fsync = counted
ledger = Ledger(path, print)
rows = [factory.measurement(size=size) for size in range(1, 41)]
for row in rows:
    ledger.append(row)
if end == "kill":
    os.kill(os.getpid(), 9)
if end == "raise":
    raise SystemExit(3)
"""


@pytest.mark.parametrize(("end", "code"), [("kill", -signal.SIGKILL), ("raise", 3), ("return", 0)])
def test_however_a_process_ends_its_rows_are_there(tmp_path: Path, end: str, code: int) -> None:
    """After ``kill -9`` the operating system has them; else the process ends when the disk has them."""
    path, synced = tmp_path / "ledger.jsonl", tmp_path / "synced"
    done = subprocess.run(
        [sys.executable, "-c", APPEND, str(path), end, str(synced)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert len(read_rows(path, pytest.fail)) == 40
    if end != "kill":
        assert synced.read_text().split()[-1] == "40", "the last sync was of all rows"


def test_a_fast_stream_is_not_synced_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(syncing, "ALONE_S", LONG_S)
    one = Syncing(lambda: calls.append(1), Clock())
    for _ in range(50):
        one.wrote()
    one.flush()
    assert len(calls) <= 2
