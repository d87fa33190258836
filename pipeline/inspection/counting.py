"""One session of ncu over points of one or several kernels, and what its report says of each point."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import ROOT
from pipeline.inspection import ncu
from pipeline.inspection.ncu import Ncu
from pipeline.inspection.ncu_pages import by_point
from pipeline.machine.device import Device
from pipeline.points.point import Point

PAGES = ("raw", "details")
"""Those of a report that rows are made of."""


@dataclass(frozen=True)
class Wanted:
    """A kernel's points to count, by their keys. ``where`` names the kernel."""

    where: str
    points: Mapping[str, Point]


@dataclass(frozen=True)
class Counted:
    """What came of it: each kernel that a point launched by its key, and by key what failed. There is no
    ``report`` where nothing was launched; ``pages`` are it as CSV."""

    tool: Ncu
    report: Path | None
    failures: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    def knows(self, wanted: Wanted) -> bool:
        """Whether anything came of any of the points."""
        return any(key in self.found or key in self.failures for key in wanted.points)


@contextmanager
def session(
    wanted: Sequence[Wanted], seed: int, sets: Sequence[str], timeout_s: float, device: Device
) -> Iterator[Counted]:
    """Count the points. The report stays until this is left. Raises Unavailable where that can't be done."""
    if device.kind != "cuda":
        raise ncu.NO_GPU
    tool = ncu.find_ncu()
    with tempfile.TemporaryDirectory() as folder:
        plan, failures, report = (
            Path(folder, name) for name in ("plan.json", "failures.json", "all.ncu-rep")
        )
        points = [
            {"where": one.where, "key": key, "point": point.model_dump()}
            for one in wanted
            for key, point in one.points.items()
        ]
        plan.write_text(json.dumps({"seed": seed, "points": points}))
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes for ncu to watch
        if device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid
        command = [sys.executable, "-m", "pipeline.inspection.counted", str(plan), str(failures)]
        tool.profile(command, report, sets, timeout_s, ROOT)
        failed = json.loads(failures.read_text()) if failures.is_file() else {}
        yield read(tool, report, failed) if report.is_file() else Counted(tool, None, failed)


def read(tool: Ncu, report: Path, failures: Mapping[str, str] | None = None) -> Counted:
    """What a report holds. Raises UserError for a file that is none."""
    pages = {page: tool.page(report, page) for page in PAGES}
    found = by_point(*(pages[page] for page in PAGES))
    return Counted(tool, report, failures or {}, pages, found)
