"""What people wait for is what they would type, in a clone of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from pipeline import ROOT, UserError, repro
from pipeline.bench_startup import CUDA_EDIT, FIRST_TABLE, STAGE, TRITON_EDIT, WAITS, Clone
from pipeline.machine import device
from pipeline.reporting import closing
from pipeline.reporting.terminal import Terminal
from tests import factory


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.bench_startup", "device=cpu", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_waits_are_timed_and_shown_beside_their_limits() -> None:
    done = bench("only=[help,misspelt,cuda_edit]")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(
        r"^help +python -m pipeline\.sweep --help kernel=softmax +\d+\.\d +1 *$", done.stdout, re.M
    )
    assert re.search(r"^misspelt +a misspelt option +\d+\.\d +1 *$", done.stdout, re.M)
    assert "cuda_edit" not in done.stdout, "a CPU has no limit there"


def test_a_wait_that_is_not_known_is_said() -> None:
    done = bench("only=hlp")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown wait 'hlp'. Did you mean 'help'?")


def test_a_wait_that_needs_another_before_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Clone, "run", lambda *words, **options: None)
    clone = Clone(tmp_path, device.cpu())
    for wait in (WAITS["first_table"].do, WAITS["cloned"].before):
        with pytest.raises(UserError, match="nothing was measured here yet; name first, too"):
            wait(clone)


def test_the_first_table_is_told_by_its_title(tmp_path: Path) -> None:
    factory.write_results(tmp_path, factory.grid(kernels=["square"], gpus=[factory.H200]))
    shown = StringIO()
    closing.show_first(Terminal(file=shown), tmp_path, factory.H200, ["square"])
    assert f"{factory.H200}{FIRST_TABLE}" in shown.getvalue()


def test_a_stage_is_told_by_the_line_that_says_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = StringIO()
    monkeypatch.setattr(repro, "console", Terminal(file=shown))
    stages = repro.Stages()
    stages.name = "environment"
    stages.end()
    found = STAGE.match(shown.getvalue())
    assert found is not None and found.groups() == ("environment", "0.0")


def test_the_edits_fit_the_sources() -> None:
    assert TRITON_EDIT[0] in (ROOT / "kernels/softmax/triton.py").read_text()
    assert CUDA_EDIT not in (ROOT / "kernels/softmax/cuda.cu").read_text()
