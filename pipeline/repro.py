"""Run DVC's stages and print this machine's table, as `make repro` does.

    python -m pipeline.repro
    python -m pipeline.repro sweep
    python -m pipeline.repro --dry

Takes the options and targets of ``dvc repro``. DVC's output is shown as it comes and kept in local/repro.log.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO

import yaml

from kernel_pipeline.records.credentials import masked

from . import ROOT
from .command.errors import fail
from .reporting import summary
from .reporting.terminal import Terminal
from .store import dvc_lock
from .store.results import CURRENT, folder_for

LOG = Path("local/repro.log")
"""The file with the whole output of DVC and its stages, relative to the repository's root."""

console = Terminal()


def main(words: Sequence[str]) -> int:
    """Run ``dvc repro`` with these words. Returns the exit status."""
    os.chdir(ROOT)
    command = [sys.executable, "-m", "dvc", "repro", *words]
    began = datetime.now(UTC).replace(microsecond=0)  # a row's time is a whole second
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"another make repro runs in this checkout, and writes {LOG}.")
        if "--dry" in words:
            with dvc_lock.kept(), _stand_ins():
                return subprocess.run(command, check=False).returncode
        log.truncate(0)
        with dvc_lock.kept():
            code, stopped_by = run(command, log)
    if code != 0 or stopped_by:
        ending = "was stopped" if stopped_by else "failed, as its last lines say"
        fail(f"dvc repro {ending}. Its whole output is in {LOG}.", 128 + stopped_by if stopped_by else code)
    show_table(began)
    return 0


def run(command: Sequence[str], log: IO[str]) -> tuple[int, int]:
    """Run DVC to its end. Returns its exit status, and the signal that stopped it or 0.

    DVC has a session of its own, so that a terminal's signal reaches this process alone. This process
    forwards the signal once to DVC and its stage, which ends as usual and keeps its rows. DVC never outlives
    this function.
    """
    signals: list[int] = []
    dvc: subprocess.Popen[str] | None = None

    def end(number: int, frame: FrameType | None = None) -> None:
        if not signals or frame is None:
            signals.append(number)
            if dvc is not None:
                with suppress(ProcessLookupError):
                    os.killpg(dvc.pid, number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, end)
    # The stages of a project of its own run the console script beside this Python.
    path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    dvc = subprocess.Popen(
        command,
        env=os.environ
        | {"PYTHONUNBUFFERED": "1", "PIPELINE_PYTHON": sys.executable, "PATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    if signals:  # a signal came while DVC was started
        end(signals[0])
    assert dvc.stdout is not None, "it is a pipe"
    try:
        pass_through(dvc.stdout, log)
    except BaseException:
        end(signal.SIGTERM)
        dvc.stdout.close()  # else DVC would wait for a reader
        raise
    finally:
        dvc.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    return dvc.returncode, next(iter(signals), 0)


def pass_through(lines: Iterable[str], log: IO[str]) -> None:
    """Print and log the lines, without passwords."""
    for line in map(masked, lines):
        log.write(line)
        log.flush()
        print(line, end="", flush=True)


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Create an empty end mark for each stage that has not run yet, because DVC asks for them even in a dry
    run. If the first stage has not run, it is run, because DVC reads the file that it writes."""
    if not CURRENT.is_file():
        first = [sys.executable, "-m", f"{__package__}.environment"]
        subprocess.run(first, stdout=subprocess.DEVNULL, check=False)
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    outs = [str(*out) if isinstance(out, dict) else out for one in stages.values() for out in one["outs"]]
    ends = [ROOT / out for out in outs if out.endswith(".done")]
    missing = [path for path in ends if not path.exists()]
    for path in missing:
        path.touch()
    try:
        yield
    finally:
        for path in missing:
            path.unlink(missing_ok=True)


def show_table(began: datetime) -> None:
    """Print this machine's table, and the number of rows measured since ``began``."""
    if CURRENT.is_file():
        machine = json.loads(CURRENT.read_bytes())
        if not summary.show(console, folder_for(Path("reports"), machine["kind"]), machine["gpu"]):
            console.print(summary.without_table(machine["gpu"]), highlight=False, soft_wrap=True)
    console.print(summary.provenance(Path("results"), began), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as failed:
        fail(f"can't write {LOG}: {failed.strerror}; make room and run the same command again.", 1)
