"""What `make repro` runs: DVC's stages, a line for each with its time and result, and the table at the end.

    python -m pipeline.repro [OPTIONS AND TARGETS OF dvc repro]

All that the stages print is in local/repro.log. Where nothing has changed since, this takes as long as DVC
does to find that out.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import IO

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pipeline import ROOT
from pipeline.reporting import closing
from pipeline.reporting.terminal import Terminal

LOG = Path("local/repro.log")
"""All that DVC and its stages said, below the repository's root."""

LAST_LINES = 15
"""Of a stage that failed."""

STARTS = re.compile(r"Running stage '([^']+)'")
SKIPS = re.compile(r"Stage '([^']+)' didn't change, skipping|Stage '([^']+)' is cached - skipping run")
OF_DVC = re.compile(
    r"> |(Updating|Generating) lock file|To (track the changes|enable auto staging)|\t(git add|dvc config)"
    r"|Use `dvc push`"
)

console = Terminal()


class Stages:
    """What the stages have said so far."""

    def __init__(self) -> None:
        self.begin = self.stage_began = monotonic()
        self.name = ""
        self.lines: list[str] = []
        self.ran = 0
        self.skipped = 0

    def read(self, lines: Iterable[str], log: IO[str], is_shown: bool) -> None:
        """Read DVC's output to its end, and say of each stage how long it took and what it said last."""
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[last]}", style="dim", markup=False),
        )
        with Progress(*columns, console=console, transient=True, disable=not is_shown) as progress:
            task = progress.add_task("dvc repro", last="")
            for line in lines:
                log.write(line)
                log.flush()
                text = line.rstrip()
                if found := STARTS.match(text):
                    self.end()
                    self.name, self.stage_began = found[1], monotonic()
                    progress.reset(task, description=self.name, last="")
                elif SKIPS.match(text):
                    self.end()
                    self.skipped += 1
                elif text and not OF_DVC.match(text):
                    self.lines.append(text)
                    progress.update(task, last=text.strip()[: max(10, console.width - 40)])

    def end(self) -> None:
        """Print the line of the stage that was running."""
        if self.name:
            self.ran += 1
            last = self.lines[-1].strip() if self.lines else ""
            console.print(f"{self.name:<12}{monotonic() - self.stage_began:7.1f} s  {last}", soft_wrap=True)
        self.name, self.lines = "", []


def main() -> int:
    """Run ``dvc repro`` with this command's words; its exit status."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    log_path = ROOT / LOG
    log_path.parent.mkdir(exist_ok=True)
    stages = Stages()
    with log_path.open("w") as log:
        # A session of its own: Ctrl-C comes to this process alone, which hands it on once.
        dvc = subprocess.Popen(
            [sys.executable, "-m", "dvc", "repro", *sys.argv[1:]],
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert dvc.stdout is not None, "it is a pipe"
        is_stopped = False
        while dvc.poll() is None:
            try:
                stages.read(dvc.stdout, log, console.is_terminal)
                dvc.wait()
            except KeyboardInterrupt:
                is_stopped = True
                os.killpg(dvc.pid, signal.SIGINT)
    if dvc.returncode != 0 or is_stopped:
        name = stages.name or "dvc repro"
        for line in stages.lines[-LAST_LINES:]:
            console.print(line, soft_wrap=True)
        how = "was stopped" if is_stopped else "failed"
        print(f"error: {name} {how}; all that was said is in {LOG}.", file=sys.stderr)
        return 130 if is_stopped else dvc.returncode
    stages.end()
    show_table()
    counts = f"{stages.ran} stages ran and {stages.skipped} had nothing to do"
    console.print(
        f"{counts}: {monotonic() - stages.begin:.1f} s. All that they said: {LOG}.",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def show_table() -> None:
    """Print this machine's table, if it has measured anything."""
    gpu = json.loads((ROOT / "build/environment.json").read_bytes())["gpu"]
    # A CPU's report is its host's own.
    reports = Path("local/reports" if gpu.startswith("cpu-") else "reports")
    if not closing.show(console, reports, gpu):
        console.print(f"Nothing was measured on {gpu}.", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
