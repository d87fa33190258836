"""One ncu session over points of one or several kernels, and the contents of its report by point."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.point import Point
from pipeline import ROOT
from pipeline.inspection import ncu
from pipeline.inspection.ncu import Ncu, Unavailable
from pipeline.inspection.ncu_pages import by_point

PAGES = ("raw", "details")
"""The pages of a report that rows are made of."""


@dataclass(frozen=True)
class SessionPoints:
    """Points of the kernel ``where``, by their keys."""

    where: str
    points: Mapping[str, Point]


@dataclass(frozen=True)
class SessionResult:
    """The kernels that each point launched, by its key, and the reasons of points that failed, by key.
    ``report`` is None where nothing was launched; ``pages`` are its CSV pages."""

    tool: Ncu
    report: Path | None
    failures: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    def knows(self, wanted: SessionPoints) -> bool:
        """Whether there is a result or a failure of any of the points."""
        return any(key in self.found or key in self.failures for key in wanted.points)


@contextmanager
def session(
    wanted: Sequence[SessionPoints], seed: int, sets: Sequence[str], timeout_s: float, device: Device
) -> Iterator[SessionResult]:
    """Count the points by ncu. The report is removed when the context is left. Raises Unavailable."""
    if device.kind != "cuda":
        raise ncu.NO_GPU
    tool = ncu.find_ncu()
    with tempfile.TemporaryDirectory() as folder:
        plan, failures = Path(folder, "plan.json"), Path(folder, "failures.json")
        report = Path(folder, "all.ncu-rep")
        points = [
            {"where": one.where, "name": key, "point": point.to_dict()}
            for one in wanted
            for key, point in one.points.items()
        ]
        plan.write_text(json.dumps({"tool": "ncu", "seed": seed, "points": points}))
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes for ncu to watch
        if device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid
        command = [sys.executable, "-m", "pipeline.inspection.watched_process", str(plan), str(failures)]
        tool.profile(command, report, sets, timeout_s, ROOT)
        failed: dict[str, str] = {}
        with suppress(FileNotFoundError, ValueError):  # the process may have ended while it wrote
            failed = json.loads(failures.read_text())
        try:
            result = read(tool, report, failed) if report.is_file() else SessionResult(tool, None, failed)
        except ncu.UnreadableError as error:
            raise Unavailable(
                f"ncu can't show the report that it has just written ({error})",
                "choose fewer points or sets=basic, and run the stage again",
            ) from error
        yield result


def read(tool: Ncu, report: Path, failures: Mapping[str, str] | None = None) -> SessionResult:
    """Read a report; without ncu's rules where ncu can't show their page. Raises ncu.UnreadableError for a
    file that is no report."""
    with ThreadPoolExecutor(len(PAGES)) as at_once:
        raw, details = (at_once.submit(tool.page, report, page) for page in PAGES)
    pages = {"raw": raw.result(), "details": ""}
    with suppress(ncu.UnreadableError):
        pages["details"] = details.result()
    return SessionResult(tool, report, failures or {}, pages, by_point(pages["raw"], pages["details"]))
