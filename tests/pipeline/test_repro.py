"""The parts of `make repro` around DVC."""

import json
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from pipeline import ROOT, repro
from pipeline.store import dvc_lock
from tests.repository import ALONE, commit, git


def test_a_stage_runs_by_the_python_that_make_repro_names(tmp_path: Path) -> None:
    """The script starts no other Python to look for one with the packages."""
    for name in ("python", "named"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/started\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PIPELINE_PYTHON": str(tmp_path / "named")}
    subprocess.run([ROOT / "pipeline/python", "-m", "pipeline.environment"], env=environment, check=True)
    assert (tmp_path / "started").read_text().split() == ["named"]
    log = StringIO()
    assert repro.run(["sh", "-c", "echo $PIPELINE_PYTHON; exit 3"], log) == (3, 0)
    assert log.getvalue() == f"{sys.executable}\n"


def test_a_signal_is_handed_on_and_told(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    wait = "trap 'echo ended; exit 0' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"
    assert repro.run(["sh", "-c", wait], StringIO()) == (0, signal.SIGTERM)
    assert capfd.readouterr().out.endswith("ended\n")
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a git and DVC repository with one stage that has run."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)  # main() changes the folder too; monkeypatch restores it
    monkeypatch.setattr(repro, "ROOT", tmp_path)
    local = tmp_path / "local"
    for name, path in {"ROOT": tmp_path, "LOCK": tmp_path / "dvc.lock", "OWN": local / "dvc.lock"}.items():
        monkeypatch.setattr(dvc_lock, name, path)
    monkeypatch.setattr(dvc_lock, "COMMITTED", local / "dvc.lock.committed")
    monkeypatch.setattr(repro, "CURRENT", tmp_path / "environment.json")
    (tmp_path / "dvc.yaml").write_text("stages:\n  sweep: {cmd: cat input, deps: [input]}\n")
    (tmp_path / "input").write_text("one\n")
    (tmp_path / ".gitignore").write_text("/local/\n")
    git(tmp_path, "init", "--quiet")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet"], check=True)
    commit(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_stages_output_is_passed_through_and_logged_and_a_table_ends_it(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkout / "environment.json").write_text(json.dumps({"kind": "cuda", "gpu": "nvidia-h200"}))
    (checkout / "input").write_text("two\n")
    assert repro.main([]) == 0
    out, err = capfd.readouterr()
    log = (checkout / "local/repro.log").read_text()
    assert err == "" and out.startswith(log) and "\ntwo\n" in log
    assert out.removeprefix(log) == (
        "There is no table of nvidia-h200: no time was measured there, or all are in doubt (a busy machine?)."
        "\nNo rows were measured in this checkout.\n"
    )

    (checkout / "input").unlink()
    with pytest.raises(SystemExit, match="255"):
        repro.main([])
    out, err = capfd.readouterr()
    assert "failed to reproduce 'sweep'" in out
    assert err == (
        "error: dvc repro failed, as its last lines say. Its whole output is in local/repro.log.\n"
    )
