"""What `make repro` runs: DVC's stages, a line for each with its time and result, and the table at the end.

    python -m pipeline.repro
    python -m pipeline.repro sweep
    python -m pipeline.repro --dry

Its words are options and targets of ``dvc repro``. All that the stages print is in local/repro.log. Where
nothing has changed since, this takes as long as DVC does to find that out. Without words, on a GPU's host
with cores to spare, stages that compile or publish run beside others, too (see ``command.early``).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import IO

import yaml
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pipeline import ROOT, UserError
from pipeline.command import remedies
from pipeline.command.early import Early
from pipeline.points.limits import visible_lines
from pipeline.reporting import summary
from pipeline.reporting.terminal import Terminal
from pipeline.store import dvc_lock
from pipeline.store.credentials import hidden, masked
from pipeline.store.results import CURRENT, folder_for

LOG = Path("local/repro.log")
"""All that DVC and its stages said, below the repository's root."""

LAST_LINES = 15
"""Of a stage that failed."""

SWEEP, REPORT = "sweep", "report"
"""The stages after which there is something to see."""

SWEPT = re.compile(r"[1-9]\d* points? measured in \S+ s.* are in \S+/([^/\s]+)/[^/\s]+\.jsonl")
"""What a sweep says of a kernel of which it has measured something."""

STARTS = re.compile(r"Running stage '([^']+)'")
SKIPS = re.compile(r"Stage '([^']+)' didn't change, skipping|Stage '([^']+)' is cached - skipping run")
OF_DVC = re.compile(
    r"> |(Updating|Generating) lock file|To (track the changes|enable auto staging)|\t(git add|dvc config)"
    r"|Use `dvc push`|WARNING: '[^']+' is empty"
)

console = Terminal()


class Stages:
    """What the stages have said so far."""

    def __init__(self) -> None:
        self.begin = self.stage_began = monotonic()
        self.name = ""
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.reason = ""
        self.details: deque[str] = deque(maxlen=LAST_LINES)
        self.swept: list[str] = []
        self.ran: list[str] = []
        self.skipped: list[str] = []

    def read(self, lines: Iterable[str], log: IO[str], early: Early | None = None) -> None:
        """Read DVC's output to its end, and say of each stage how long it took and what it said last;
        ``early`` is told of each that begins."""
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[last]}", style="dim", markup=False),
        )
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("dvc repro", last="")
            for line in map(masked, lines):
                log.write(line)
                text = line.rstrip()
                if early is not None:
                    early.look()
                if found := STARTS.match(text):
                    ended = self.name
                    self.end()
                    self.name, self.stage_began = found[1], monotonic()
                    progress.reset(task, description=self.name, last="")
                    if early is not None:
                        early.stage_begins(self.name, machine().get("kind", "cpu"))
                    if ended == SWEEP and self.swept:
                        show_first_table(self.swept)
                elif found := SKIPS.match(text):
                    self.end()
                    self.skipped.append(found[1] or found[2])
                elif text and not OF_DVC.match(text):
                    self.lines.append(text)
                    # DVC says first what is wrong, and a stage last.
                    is_reason = remedies.REASON.fullmatch(text) is not None
                    if is_reason and (not self.reason or text.startswith("error: ")):
                        self.reason = text
                        self.details.clear()
                    else:
                        self.details.append(text)
                    if self.name == SWEEP and (swept := SWEPT.match(text)):
                        self.swept.append(swept[1])
                        if len(self.swept) == 1:
                            # It is something to look at while the others are measured.
                            show_first_table(self.swept)
                    progress.update(task, last=text.strip()[: max(10, console.width - 40)])
                log.flush()

    def end(self) -> None:
        """Print the line of the stage that was running."""
        if self.name:
            self.ran.append(self.name)
            last = self.lines[-1].strip() if self.lines else ""
            console.print(f"{self.name:<12}{monotonic() - self.stage_began:7.1f} s  {last}", soft_wrap=True)
        self.name, self.reason = "", ""
        self.lines.clear()
        self.details.clear()

    def why(self) -> str:
        """The sentence that says why DVC, or the stage that was running, has failed."""
        of_stage = [line for line in self.lines if not line.startswith("ERROR: ")]
        said = self.reason or (of_stage or ["nothing was said"])[-1]
        return remedies.explained(said, list(self.details), ROOT)


def main(words: Sequence[str]) -> int:
    """Run ``dvc repro`` with these words; the exit status."""
    command = [sys.executable, "-m", "dvc", "repro", *words]
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    os.chdir(ROOT)
    stages = Stages()
    began = datetime.now(UTC).replace(microsecond=0)  # a row's time is a whole second
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"error: another make repro runs in this checkout, and writes {LOG}.", file=sys.stderr)
            return 2
        if "--dry" in words:
            with dvc_lock.kept():
                # Nothing runs: DVC's own words are the answer. It asks for what the first stage makes.
                if not CURRENT.is_file():
                    first = [sys.executable, "-m", "pipeline.environment"]
                    subprocess.run(first, stdout=subprocess.DEVNULL, check=False)
                with stood_in():
                    return subprocess.run(command, check=False).returncode
        log.truncate(0)
        try:
            # Who names targets or options has said what shall run.
            with dvc_lock.kept(), nullcontext() if words else Early(ROOT, log) as early:
                code, stopped_by = run(command, stages, log, early)
        except BrokenPipeError:
            # Who read the lines has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
    if code != 0 or stopped_by:
        for line in stages.lines:
            console.print(line, soft_wrap=True)
        how = "was stopped." if stopped_by else f"failed: {stages.why()}"
        said = visible_lines(hidden(f"{stages.name or 'dvc repro'} {how}"))
        print(f"error: {said} All that was said is in {LOG}.", file=sys.stderr)
        return 128 + stopped_by if stopped_by else code
    stages.end()
    if REPORT in (*stages.ran, *stages.skipped):
        show_table()
    elif stages.swept:
        show_first_table(stages.swept)
    console.print(str(summary.provenance(Path("results"), began)), highlight=False, soft_wrap=True)
    counts = f"{len(stages.ran)} stages ran and {len(stages.skipped)} had nothing to do"
    console.print(
        f"{counts}: {monotonic() - stages.begin:.1f} s. All that they said: {LOG}.",
        highlight=False,
        soft_wrap=True,
    )
    return 0


@contextmanager
def stood_in() -> Iterator[None]:
    """Put an empty file in place of each that a stage writes when it has ended, where it did not run yet: DVC
    asks for them even if nothing is to run."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    ends = [
        ROOT / out for stage in stages.values() for out in stage.get("outs", ()) if str(out).endswith(".done")
    ]
    missing = [path for path in ends if not path.exists()]
    for path in missing:
        path.touch()
    try:
        yield
    finally:
        for path in missing:
            path.unlink(missing_ok=True)


def run(command: Sequence[str], stages: Stages, log: IO[str], early: Early | None = None) -> tuple[int, int]:
    """Run DVC to its end; its exit status, and the signal that stopped it or 0.

    DVC has a session of its own, so that a signal from a terminal comes to this process alone. It is handed
    on to DVC and its stage, once, and the stage ends as it does by itself: what it measured is kept. Nor does
    DVC outlive this function in any other way.
    """
    stopped_by = 0
    dvc: subprocess.Popen[str] | None = None

    def hand_on(number: int, frame: FrameType | None = None) -> None:
        nonlocal stopped_by
        if not stopped_by:
            stopped_by = number
            if dvc is not None:
                _end(dvc, number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup ignores one
            signal.signal(number, hand_on)
    try:
        dvc = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "PIPELINE_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if stopped_by:  # while it was started
            _end(dvc, stopped_by)
        assert dvc.stdout is not None, "it is a pipe"
        try:
            stages.read(dvc.stdout, log, early)
        except BaseException:
            _end(dvc, signal.SIGTERM)
            dvc.stdout.close()  # or it would wait for a reader
            raise
        finally:
            dvc.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return dvc.returncode, stopped_by


def _end(dvc: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(dvc.pid, number)


def machine() -> dict[str, str]:
    """The machine at hand as the first stage has named it; nothing where that did not run."""
    found: dict[str, str] = json.loads(CURRENT.read_bytes()) if CURRENT.is_file() else {}
    return found


def show_first_table(kernels: Collection[str]) -> None:
    """Print what the sweeps of these kernels have found. A report of this machine may be there already: it
    came with the clone, or was made before."""
    if environment := machine():
        folder = folder_for(Path("results"), environment["kind"])
        summary.show_first(console, folder, environment["gpu"], kernels)


def show_table() -> None:
    """Print this machine's table, if it has measured anything."""
    environment = machine()
    if environment and not summary.show(console, reports_of(environment), environment["gpu"]):
        console.print(f"Nothing was measured on {environment['gpu']}.", highlight=False, soft_wrap=True)


def reports_of(environment: Mapping[str, str]) -> Path:
    """Where the report of the machine at hand lies."""
    return folder_for(Path("reports"), environment["kind"])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as refused:
        sys.exit(f"error: {refused}")
    except OSError as failed:
        sys.exit(f"error: can't write {LOG}: {failed.strerror}; make room and run the same command again.")
