"""What `make repro` shows while stages run, by what they print."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import ROOT, repro
from pipeline.reporting.swept import Swept
from pipeline.reporting.terminal import Terminal
from tests import factory

KERNELS = ["gelu", "square"]


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What is printed where a GPU has rows of two kernels, and a report of it came with the clone."""
    monkeypatch.chdir(tmp_path)
    rows = factory.grid(kernels=KERNELS, gpus=[factory.H200])
    factory.write_results(tmp_path / "results", rows)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/best.csv").write_text(f"kernel,gpu\nsquare,{factory.H200}\n")
    monkeypatch.setattr(repro, "machine", lambda: {"kind": "cuda", "gpu": factory.H200})
    found = StringIO()
    monkeypatch.setattr(repro, "console", Terminal(file=found))
    return found


def measured(kernel: str, count: int) -> str:
    """The line that a sweep says of a kernel."""
    return f"{count} points measured in 1.0 s; noise floor 0.1%. 12 of 12 are in {ledger(kernel)}.\n"


def ledger(kernel: str) -> Path:
    return Path("results/timings", kernel, f"{factory.H200}.jsonl")


def read(*lines: str) -> repro.Stages:
    stages = repro.Stages()
    stages.read(["Running stage 'sweep':\n", *lines], StringIO())
    return stages


def tables(shown: StringIO) -> list[set[str]]:
    """The kernels of each first table."""
    parts = shown.getvalue().split(f"{factory.H200}, by the sweeps")[1:]
    return [{name for name in KERNELS if f"\n{name} " in part} for part in parts]


def test_the_first_kernel_measured_is_shown_at_once_and_all_when_the_sweep_is_through(
    shown: StringIO,
) -> None:
    read(measured("square", 3), measured("gelu", 1))
    assert tables(shown) == [{"square"}]
    read(measured("square", 3), measured("gelu", 1), "Running stage 'finals':\n")
    assert tables(shown)[1:] == [{"square"}, {"square", "gelu"}]


def test_what_was_there_before_is_no_first_table(shown: StringIO) -> None:
    stages = read(measured("square", 0), "Nothing to measure.\n", "Running stage 'finals':\n")
    assert tables(shown) == [] and stages.swept == []


def test_a_sweeps_own_closing_line_tells_it() -> None:
    planned: Any = SimpleNamespace(points=[])
    unread: Any = None
    swept = Swept(unread, planned, unread, ledger("square"), [], 12, 3.2, 0.001, "run")
    found = repro.SWEPT.match(swept.closing_line())
    assert found is not None and found[1] == "square"


def test_a_stage_runs_by_the_python_that_make_repro_names(tmp_path: Path) -> None:
    """And starts no other to find one that has the packages."""
    for name in ("python", "named"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/started\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PIPELINE_PYTHON": str(tmp_path / "named")}
    subprocess.run([ROOT / "pipeline/python", "-m", "pipeline.environment"], env=environment, check=True)
    assert (tmp_path / "started").read_text().split() == ["named"]
    told: list[str] = []
    stages = repro.Stages()
    stages.read = lambda lines, log, early=None: told.extend(lines)  # type: ignore[method-assign]  # it hears all
    with (tmp_path / "log").open("w") as log:
        repro.run(["sh", "-c", "echo $PIPELINE_PYTHON"], stages, log)
    assert told == [f"{sys.executable}\n"]
