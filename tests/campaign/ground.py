"""The copy of the tree in which the campaign happens, and what can be seen of it from outside."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests import hostile
from tests.planted.tree import PLANTED, Tree

SMOKE = ("preset=smoke", "device=cpu", "timing.max_seconds=0.002")
"""For commands about a kernel's points: as few and as short as can be."""

LARGE = ("size=[1000000,2000000,4000000]", "output=results", "tracking=none")
"""What a sweep is given so that a report has something to draw: vectors that leave the caches."""

PATIENCE_S = 120.0
"""How long what should end soon may take on a loaded machine."""

TEMPORARY = re.compile(r"\..*\.[0-9a-f]{32}$|.*(\.tmp|\.part|-journal|-wal|-shm)$")
"""Names of files that are there only while something is written."""

Rows = dict[str, set[str]]


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str
    seconds: float

    def fault(self) -> str | None:
        """Why this is no good end, or None."""
        if self.code or "Traceback" in self.out + self.err:
            return f"exit code {self.code}: {self.told}"
        return None

    def silence(self) -> str | None:
        """Why this is not a failure in one sentence, or None."""
        sentence = self.err.count("\n") == 1 and self.err.startswith("error: ")
        if self.code != 2 or not sentence or "Traceback" in self.out:
            return f"exit code {self.code} and not one sentence: {self.told}"
        return None

    @property
    def told(self) -> str:
        """The last words."""
        return " ".join((self.err.strip() or self.out.strip() or "nothing said").split())[-300:]


class Running:
    """A command that was started."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process = process
        self.said = said
        self.started = time.monotonic()

    def end(self) -> Done:
        """Wait for it. What it started and left may still run, and write where it did."""
        code = self.process.wait()
        out, err = (self.said.with_suffix(end).read_text(errors="replace") for end in (".out", ".err"))
        return Done(code, out, err, time.monotonic() - self.started)

    def until(self, condition: Callable[[], object]) -> bool:
        """Wait until the condition holds; False if the command ended before."""
        while self.process.poll() is None:
            if condition():
                return True
            time.sleep(0.005)
        return False


class Ground(Tree):
    """The copy, with a kernel that takes no time and one with C++ and Triton providers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "quick")
        kernel = self.root / "kernels" / "tripled"
        shutil.copytree(PLANTED / "tripled", kernel, ignore=shutil.ignore_patterns("__pycache__"))
        (kernel / "kernel.yaml").rename(self.root / "conf" / "kernel" / "tripled.yaml")
        self.folder = folder
        self._started = 0

    def begin(
        self,
        command: str,
        *words: str,
        temporary: Path | None = None,
        preexec: Callable[[], None] | None = None,
    ) -> Running:
        """Start ``python -m pipeline.COMMAND``, its temporary files in a folder of its own or the tree's."""
        self._started += 1
        said = self.folder / "said" / f"{self._started}"
        said.parent.mkdir(exist_ok=True)
        env = os.environ | {"TMPDIR": str(temporary or self.temporary), "COLUMNS": "200"}
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
            env.pop(name, None)
        with said.with_suffix(".out").open("wb") as out, said.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", f"pipeline.{command}", *words],
                cwd=self.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=preexec,  # noqa: PLW1509  # there is one thread
            )
        return Running(process, said)

    def do(self, command: str, *words: str, preexec: Callable[[], None] | None = None) -> Done:
        """Run a command to its end."""
        return self.begin(command, *words, preexec=preexec).end()

    def ledgers(self, *below: Path) -> Iterator[Path]:
        """The ledgers and the records of sweeps, of the tree or of other folders of results."""
        for place in below or (self.root / "local" / "results", self.root / "outputs"):
            yield from sorted([*place.glob("timings/*/*.jsonl"), *place.glob("runs/*.jsonl")])

    def keys(self, *below: Path) -> Rows:
        """The keys of the rows that can be read, by file."""
        return {
            str(path): {
                json.loads(line)["key"] for line in path.read_bytes().split(b"\n") if is_row(path, line)
            }
            for path in self.ledgers(*below)
        }

    def torn(self, path: Path) -> list[int]:
        """The numbers of a ledger's lines that can't be read, from the end: the last one is 0."""
        lines = path.read_bytes().rstrip(b"\n").split(b"\n")
        has_heading = path.parent.name == "runs"
        return [
            len(lines) - 1 - i
            for i, line in enumerate(lines)
            if not (has_heading and i == 0) and not hostile.is_measurement(line)
        ]

    def unreadable(self) -> list[str]:
        """Files that are replaced whole, so that they can be read at any moment, and can't be."""
        found = []
        for place in ("local", "build"):
            for path in sorted((self.root / place).rglob("*.json*")):
                if path in set(self.ledgers()) or TEMPORARY.match(path.name) or path.name.startswith("."):
                    continue
                try:
                    text = path.read_text()
                    for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
                        json.loads(line)
                except ValueError:
                    found.append(str(path.relative_to(self.root)))
        return found

    def temporaries(self) -> set[str]:
        """What was left in the tree of what is there only for a while."""
        places = [self.root / name for name in ("local", "outputs", "build", "artifacts", "mlartifacts")]
        files = [*self.root.glob("*"), *(path for place in places for path in place.rglob("*"))]
        return {str(path.relative_to(self.root)) for path in files if TEMPORARY.match(path.name)}

    def processes(self) -> dict[int, str]:
        """The commands of those that run for this ground, by their ids."""
        mark = f"TMPDIR={self.folder}".encode()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if mark in (process / "environ").read_bytes():
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(process.name)] = words.decode(errors="replace").strip()
        return found

    def survivors(self) -> list[str]:
        """Who is still there after a while; they are ended."""
        patience = time.monotonic() + PATIENCE_S
        while self.processes() and time.monotonic() < patience:
            time.sleep(0.05)
        return self.end_all()

    def end_all(self) -> list[str]:
        """End all that runs for this ground; their commands."""
        left = self.processes()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return list(left.values())


def is_row(path: Path, line: bytes) -> bool:
    """Whether a line of a file holds a measurement."""
    return bool(line.strip()) and hostile.is_measurement(line)


def missing(before: Rows, after: Rows) -> int:
    """How many of the rows are not there any more."""
    return sum(len(keys - after.get(path, set())) for path, keys in before.items())
