"""Run an ncu session over points of kernels or over a program, and read reports."""

from __future__ import annotations

import json
import os
import shlex
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

from .. import ROOT
from . import ncu
from .ncu import Ncu, Unavailable
from .ncu_pages import by_point

PAGES = ("raw", "details")
"""The pages of a report from which rows are made."""


@dataclass(frozen=True)
class SessionPoints:
    """Points of the kernel ``where``, by their keys."""

    where: str
    points: Mapping[str, Point]


@dataclass(frozen=True)
class SessionResult:
    """The result of a session. ``found`` are the numbers of the kernels that each point launched, and
    ``failures`` the reasons why points failed, both by the point's key. ``report`` is None if nothing was
    launched; ``pages`` are its CSV pages."""

    tool: Ncu
    report: Path | None
    failures: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    def knows(self, wanted: SessionPoints) -> bool:
        """Return whether any of the points has a result or a failure."""
        return any(key in self.found or key in self.failures for key in wanted.points)


@contextmanager
def session(
    wanted: Sequence[SessionPoints], seed: int, sets: Sequence[str], timeout_s: float, device: Device
) -> Iterator[SessionResult]:
    """Profile the points with ncu. The report is removed when the context ends. Raises Unavailable."""
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
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compiler processes under ncu
        if device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid
        command = [sys.executable, "-m", f"{__package__}.watched_process", str(plan), str(failures)]
        tool.profile(command, report, sets, timeout_s, ROOT)
        failed: dict[str, str] = {}
        with suppress(FileNotFoundError, ValueError):  # the process may have died while it wrote the file
            failed = json.loads(failures.read_text())
        try:
            result = read(tool, report, failed) if report.is_file() else SessionResult(tool, None, failed)
        except ncu.UnreadableError as error:
            raise Unavailable(
                f"ncu can't show the report that it has just written ({error})",
                "choose fewer points or sets=basic, and run the stage again",
            ) from error
        yield result


def of_program(
    program: str, report: Path, sets: Sequence[str], launches: int, timeout_s: float, device: Device
) -> None:
    """Count the first launches of a command and of the processes that it starts. Raises Unavailable."""
    tool = ncu.find_ncu()
    if device.uuid is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid
    which = ("--target-processes", "all", "--launch-count", str(launches))
    tool.profile(shlex.split(program), report, sets, timeout_s, Path.cwd(), which)


def pages_of(path: Path) -> tuple[str, str]:
    """Return the pages ``raw`` and ``details`` of a report. A file with the suffix ``.csv`` is the page
    ``raw`` itself, as NAME.raw.csv, and NAME.details.csv beside it may hold the other. Raises OSError,
    Unavailable, and ncu.UnreadableError if the file is not a report."""
    if path.suffix == ".csv":
        details = path.with_name(path.name.replace(".raw.", ".details."))
        return path.read_text(errors="replace"), details.read_text(
            errors="replace"
        ) if details.is_file() else ""
    path.open("rb").close()  # a missing file is no fault of ncu's
    pages = read(ncu.find_ncu(), path).pages
    return pages["raw"], pages["details"]


def read(tool: Ncu, report: Path, failures: Mapping[str, str] | None = None) -> SessionResult:
    """Read a report. If ncu can't show the page ``details``, the result has no rules. Raises
    ncu.UnreadableError if the file is not a report."""
    with ThreadPoolExecutor(len(PAGES)) as at_once:
        raw, details = (at_once.submit(tool.page, report, page) for page in PAGES)
    pages = {"raw": raw.result(), "details": ""}
    with suppress(ncu.UnreadableError):
        pages["details"] = details.result()
    return SessionResult(tool, report, failures or {}, pages, by_point(pages["raw"], pages["details"]))
