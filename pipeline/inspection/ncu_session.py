"""One session of ncu over points of one or several kernels, and what its report says of each point."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from pipeline import ROOT
from pipeline.inspection import ncu
from pipeline.inspection.launches import RANGE
from pipeline.inspection.ncu import Ncu, Unavailable
from pipeline.inspection.ncu_pages import by_point
from pipeline.machine.device import Device
from pipeline.points.point import Point

PAGES = ("raw", "details")
"""Those of a report that rows are made of."""


@dataclass(frozen=True)
class PointsToCount:
    """A kernel's points to count, by their keys. ``where`` names the kernel."""

    where: str
    points: Mapping[str, Point]


@dataclass(frozen=True)
class Spent:
    """Seconds of a session: until ncu's process has its first point; by key until a point was ready to be
    counted, and while it was; until ncu has ended after the last; until its report was read."""

    start: float
    ready: Mapping[str, float]
    counted: Mapping[str, float]
    close: float
    read: float

    @property
    def total(self) -> float:
        """Of all."""
        return self.start + sum(self.ready.values()) + sum(self.counted.values()) + self.close + self.read

    def of(self, keys: Iterable[str]) -> float:
        """Of some points."""
        return sum(self.ready.get(key, 0.0) + self.counted.get(key, 0.0) for key in keys)


@dataclass(frozen=True)
class Counted:
    """What came of it: each kernel that a point launched by its key, and by key what failed. There is no
    ``report`` where nothing was launched; ``pages`` are it as CSV. ``spent`` is None for a report that was
    there before."""

    tool: Ncu
    report: Path | None
    failures: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    spent: Spent | None = None

    def knows(self, wanted: PointsToCount) -> bool:
        """Whether anything came of any of the points."""
        return any(key in self.found or key in self.failures for key in wanted.points)


@contextmanager
def session(
    wanted: Sequence[PointsToCount], seed: int, sets: Sequence[str], timeout_s: float, device: Device
) -> Iterator[Counted]:
    """Count the points. The report stays until this is left. Raises Unavailable where that can't be done."""
    if device.kind != "cuda":
        raise ncu.NO_GPU
    tool = ncu.find_ncu()
    with tempfile.TemporaryDirectory() as folder:
        plan, failures, times, report = (
            Path(folder, name) for name in ("plan.json", "failures.json", "times.json", "all.ncu-rep")
        )
        points = [
            {"where": one.where, "key": key, "point": point.model_dump()}
            for one in wanted
            for key, point in one.points.items()
        ]
        plan.write_text(json.dumps({"seed": seed, "points": points, "times": str(times)}))
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes for ncu to watch
        if device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid
        command = [sys.executable, "-m", "pipeline.inspection.ncu_session", str(plan), str(failures)]
        begun = monotonic()
        tool.profile(command, report, sets, timeout_s, ROOT)
        ended = monotonic()
        failed = _left(failures)
        try:
            found = read(tool, report, failed) if report.is_file() else Counted(tool, None, failed)
        except ncu.UnreadableError as error:
            raise Unavailable(
                f"ncu can't show the report that it has just written ({error})",
                "choose fewer points or sets=basic, and run the stage again",
            ) from error
        marks = _left(times)
        yield replace(found, spent=_spent(marks, begun, ended, monotonic()))


def read(tool: Ncu, report: Path, failures: Mapping[str, str] | None = None) -> Counted:
    """The content of a report; without ncu's rules where it can't show the page of them. Raises
    ncu.UnreadableError for a file that is no report."""
    with ThreadPoolExecutor(len(PAGES)) as at_once:
        raw, details = (at_once.submit(tool.page, report, page) for page in PAGES)
    pages = {"raw": raw.result(), "details": ""}
    with suppress(ncu.UnreadableError):
        pages["details"] = details.result()
    found = by_point(pages["raw"], pages["details"])
    return Counted(tool, report, failures or {}, pages, found)


def _left(path: Path) -> dict[str, Any]:
    """The content of a file that the process under ncu wrote; empty where it ended before it had written."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _spent(marks: Mapping[str, Sequence[float]], begun: float, ended: float, read: float) -> Spent:
    """By the marks that ``counted`` has left of each point: its begin and its end, and between them when it
    was ready, unless it failed before that."""
    first = min((of_point[0] for of_point in marks.values()), default=ended)
    last = max((of_point[-1] for of_point in marks.values()), default=ended)
    return Spent(
        start=first - begun,
        ready={key: of_point[1] - of_point[0] for key, of_point in marks.items()},
        counted={key: of_point[-1] - of_point[1] for key, of_point in marks.items()},
        close=ended - last,
        read=read - ended,
    )


def main(plan: Path, failures: Path) -> None:
    """The process that ncu watches: one call of each point of the plan, in an NVTX range that names its key.

    What fails is written by key, and the others go on. When each point began, when it was ready to be counted
    and when it was through is written by key, too, by the host's monotonic clock. The plan is JSON: the seed,
    points with their keys, each with where its kernel is, and the file that takes the times.
    """
    from pipeline.points import tracebacks

    wanted = json.loads(plan.read_text())
    failed: dict[str, str] = {}
    times: dict[str, list[float]] = {}
    for one in wanted["points"]:
        marks = times.setdefault(one["key"], [monotonic()])
        try:
            _count(one["where"], one["key"], Point.model_validate(one["point"]), wanted["seed"], marks)
        except Exception as error:  # whatever a provider raises is its own row's fate
            failed[one["key"]] = " ".join(tracebacks.named(error).split())[:500]
            failures.write_text(json.dumps(failed))
        marks.append(monotonic())
        Path(wanted["times"]).write_text(json.dumps(times))
    failures.write_text(json.dumps(failed))


def _count(where: str, key: str, point: Point, seed: int, marks: list[float]) -> None:
    import torch

    from pipeline.execution import instance

    nvtx: Any = torch.cuda.nvtx
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    # Before its first pass over a kernel ncu saves all of the device's memory that this process holds: also
    # what earlier points had, which torch keeps for later ones. It is given back now, and not right before
    # what is counted: the device clears it in the background.
    torch.cuda.empty_cache()
    found = instance.standalone(where, point)
    inputs = found.inputs(torch.device("cuda"), seed)
    found.call(*inputs)  # compiles and loads, unseen
    torch.cuda.synchronize()
    marks.append(monotonic())
    runtime.cudaProfilerStart()
    try:
        nvtx.range_push(RANGE + key)
        found.call(*inputs)
        torch.cuda.synchronize()
        nvtx.range_pop()
    finally:
        runtime.cudaProfilerStop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
