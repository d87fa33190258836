"""A disk that is full, and one that turns read-only while a command writes."""

import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernel_pipeline.machine import device
from tests.campaign.ground import LARGE, PATIENCE_S, SMOKE, Ground, Running, missing
from tests.campaign.score import Score

SIZES = f"size=[{','.join(map(str, range(1, 31)))}]"
POINTS = 60
SWEEP = ("kernel=quick", *SMOKE, "timing.cache=hot", "tracking=none", SIZES)
COMPLETE = f"{POINTS} of {POINTS} are in"


@dataclass
class Disk:
    """A place that is soon full, what makes it so for a process, and how room is made."""

    place: Path
    preexec: Callable[[], None] | None
    make_room: Callable[[], object]


def mounted(place: Path, size: str) -> bool:
    """Whether a file system of this size could be put there."""
    place.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    return (
        shutil.which("mount") is not None
        and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    )


def small_files() -> None:
    """Let no file of this process grow beyond 12 KiB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 10, resource.RLIM_INFINITY))


@contextmanager
def small(place: Path, kib: int) -> Iterator[Disk]:
    """A file system of so many KiB; where none may be mounted, a limit on the size of files."""
    if not mounted(place, f"{kib}k"):
        yield Disk(place, small_files, lambda: None)
        return
    larger = ["mount", "-o", "remount,size=64m", str(place)]
    yield Disk(place, None, lambda: subprocess.run(larger, check=True))
    subprocess.run(["umount", "-l", str(place)], check=True)


def campaign(ground: Ground, dice: random.Random) -> list[Score]:
    """Both."""
    ground.know_ceilings(device.cpu())
    full, gone = Score("full disk"), Score("read-only disk")
    full.blame(ground.do("sweep", "kernel=quick", *SMOKE, *LARGE).fault())
    for command, kib in (
        *(("sweep", kib) for kib in (40, dice.randrange(48, 100))),
        *(("report", kib) for kib in (24, dice.randrange(28, 60))),
        *(("publish", kib) for kib in (100, 300, 600, 900)),
    ):
        fill(ground, command, kib, full)
        print(f"{command} on a disk of {kib} KiB", flush=True)
    if read_only(ground, "aside", gone):
        gone.tried += 1
        print("read-only disk", flush=True)
    else:
        print("The read-only disk is skipped: nothing may be mounted here.")
    return [full, gone]


def fill(ground: Ground, command: str, kib: int, score: Score) -> None:
    """A command that has more to write than there is room for, and again with room."""
    score.tried += 1
    with small(ground.root / "disk", kib) as disk:
        if command == "sweep":
            words: tuple[str, ...] = (*SWEEP, f"output={disk.place}")
        elif command == "report":
            words = ("device=cpu", "input=local/results", f"output={disk.place}/reports")
        else:
            words = (f"tracking.uri=sqlite:///{disk.place}/mlflow.db", "input=local/results")
        before = ground.keys()
        what = f"{command} on {kib} KiB: "
        done = ground.do(command, *words, preexec=disk.preexec)
        score.blame((silence := done.silence()) and what + silence)
        kept = ground.keys(disk.place)
        if command == "sweep":
            score.blame(None if any(kept.values()) else what + "nothing was kept")
        disk.make_room()
        again = ground.do(command, *words)
        score.blame((fault := again.fault()) and f"{what}with room {fault}")
        if command == "sweep" and COMPLETE not in again.out:
            score.blame(f"{what}with room {again.told}")
        score.lose(missing(before, ground.keys()) + missing(kept, ground.keys(disk.place)), what)
        left = [path.name for path in disk.place.rglob(".*") if not path.name.endswith(".lock")]
        score.blame(f"{what}left behind: {left}" if left else None)


def midway(ground: Ground, output: Path, running: Running) -> bool:
    """Wait until some lines of the sweep are written."""
    return running.until(
        lambda: sum(path.read_bytes().count(b"\n") for path in output.glob("timings/*/*.jsonl")) > 10
    )


def read_only(ground: Ground, name: str, score: Score) -> bool:
    """The disk turns read-only between two lines of a ledger, and later writable again."""
    output = ground.root / "local" / "results"
    shutil.move(output, ground.root / name)
    if not mounted(output, "8m"):
        output.rmdir()
        shutil.move(ground.root / name, output)
        return False
    shutil.copytree(ground.root / name / "ceilings", output / "ceilings")
    remount = ["mount", "-o", "remount,ro", str(output)]
    running = ground.begin("sweep", *SWEEP, "output=results")
    if midway(ground, output, running):
        patience = time.monotonic() + PATIENCE_S
        # Refused while a file is open for writing.
        while time.monotonic() < patience and running.process.poll() is None:
            if subprocess.run(remount, capture_output=True, check=False).returncode == 0:
                break
    score.blame(running.end().silence())
    kept = ground.keys(output)
    subprocess.run(["mount", "-o", "remount,rw", str(output)], check=True)
    done = ground.do("sweep", *SWEEP, "output=results")
    score.blame(done.fault() or whole(output))
    score.lose(missing(kept, ground.keys(output)), "by a disk that was read-only")
    subprocess.run(["umount", "-l", str(output)], check=True)
    output.rmdir()
    shutil.move(ground.root / name, output)
    return True


def whole(output: Path) -> str | None:
    """What is missing of a sweep's folder, or None."""
    lines = sum(path.read_bytes().count(b"\n") for path in output.glob("timings/quick/*.jsonl"))
    files = [*output.glob("environment/*.json"), *output.glob("timings/quick/*.yaml")]
    if lines != POINTS or len(files) != 2:
        return f"{lines} of {POINTS} rows, and of environment and configuration {len(files)} of 2 files"
    return None
