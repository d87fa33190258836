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
from pipeline.command import remedies
from pipeline.reporting.sweep_output import SweepOutput
from pipeline.reporting.terminal import Terminal
from pipeline.store import dvc_lock
from tests import factory
from tests.repository import ALONE, commit, git

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


def test_a_sweeps_own_last_line_says_it() -> None:
    planned: Any = SimpleNamespace(points=[])
    unread: Any = None
    swept = SweepOutput(unread, planned, unread, ledger("square"), [], 12, 3.2, 0.001, "run")
    found = repro.SWEPT.match(swept.summary_line())
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


DVC_YAML = """stages:
  sweep: {cmd: cat input, deps: [input]}
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of git's and DVC's with one stage, which has run."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)  # as main does, and this test's end undoes
    monkeypatch.setattr(repro, "ROOT", tmp_path)
    local = tmp_path / "local"
    for name, path in {"ROOT": tmp_path, "LOCK": tmp_path / "dvc.lock", "OWN": local / "dvc.lock"}.items():
        monkeypatch.setattr(dvc_lock, name, path)
    monkeypatch.setattr(dvc_lock, "COMMITTED", local / "dvc.lock.committed")
    monkeypatch.setattr(repro, "machine", dict)
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "input").write_text("one\n")
    (tmp_path / ".gitignore").write_text("/local/\n")
    git(tmp_path, "init", "--quiet")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet"], check=True)
    commit(tmp_path)
    return tmp_path


def failed(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said of why DVC could not go on."""
    capfd.readouterr()
    assert repro.main(list(words)) != 0
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and said.endswith(". All that was said is in local/repro.log.\n")
    return said.partition(" failed: ")[2].removesuffix(" All that was said is in local/repro.log.\n")


def obey(sentence: str, root: Path) -> None:
    """Run the command of a sentence, which a shell has to take as it is."""
    command = sentence.partition(": ")[2].partition(" takes ")[0].partition(" lets ")[0]
    subprocess.run(["sh", "-c", command], cwd=root, check=True, capture_output=True)


@pytest.mark.slow
def test_a_merge_conflict_in_the_lock_file_is_a_sentence_with_a_way_out(
    checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = checkout / "dvc.lock"
    main = git(checkout, "branch", "--show-current")
    for branch, text in (("other", "two\n"), (main, "three\n")):
        git(checkout, "checkout", "--quiet", *(["-b"] if branch == "other" else []), branch)
        (checkout / "input").write_text(text)
        assert repro.main([]) == 0
        subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet"], check=True)
        commit(checkout)
    with pytest.raises(subprocess.CalledProcessError):
        git(checkout, "merge", "other")
    (checkout / "input").write_text("three\n")
    marked = lock.read_text()
    assert remedies.MARK in marked
    said = failed(capfd)
    assert said == (
        "dvc.lock holds the marks of a merge conflict: "
        "git checkout --ours -- dvc.lock && git add dvc.lock takes this branch's."
    )
    obey(said, checkout)
    assert repro.main([]) == 0

    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "merged")
    lock.write_text(marked)
    said = failed(capfd)
    assert said.endswith(": git checkout HEAD -- dvc.lock takes the committed one.")
    obey(said, checkout)
    assert repro.main([]) == 0

    lock.write_text(marked)
    git(checkout, "commit", "--quiet", "--all", "--message", "with marks")
    dvc_lock.OWN.unlink(missing_ok=True)
    said = failed(capfd)
    assert said.endswith(": rm dvc.lock lets the next run make it anew.")
    obey(said, checkout)
    assert repro.main([]) == 0


@pytest.mark.slow
def test_what_dvc_and_its_stages_say_is_the_reason(
    checkout: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failed(capfd, "swep") == "there is no stage swep: python -m dvc stage list names them."
    assert failed(capfd, "--nope") == (
        "dvc repro has no --nope: python -m dvc repro --help lists its options."
    )
    (checkout / "input").unlink()
    assert failed(capfd) == "input is missing: git checkout HEAD -- input brings it back."
    (checkout / "input").write_text("error: the first\nerror: no GPU; write device=cpu\n")
    (checkout / "dvc.yaml").write_text(DVC_YAML.replace("cat input", "cat input; exit 3"))
    assert failed(capfd) == "no GPU; write device=cpu."
    (checkout / "input").write_text("Traceback (most recent call last):\nZeroDivisionError: by zero\n")
    assert failed(capfd) == "ZeroDivisionError: by zero."
    (checkout / "dvc.yaml").write_text(DVC_YAML + "  bad: [\n")
    said = failed(capfd)
    assert said.startswith("dvc.yaml can't be read (") and "line " in said
    assert said.endswith("): git diff HEAD -- dvc.yaml shows what was edited.")
    (checkout / ".dvc").rename(checkout / "elsewhere")
    assert failed(capfd).endswith(": git checkout HEAD -- .dvc brings it back.")


def test_what_is_said_of_dvc_is_for_a_shell(tmp_path: Path) -> None:
    """What it says where a name has spaces, another DVC runs, or DVC is not there."""

    def said(line: str, *details: str) -> str:
        return remedies.explained(line, details, tmp_path)

    assert said("ERROR: failed to reproduce 'a': missing data 'source': my file") == (
        "my file is missing: git checkout HEAD -- 'my file' brings it back."
    )
    assert said("ERROR: Unable to acquire lock. Most likely another DVC process is running").startswith(
        "Unable to acquire lock: wait for the other dvc in this checkout, or end it; "
    )
    assert said("/usr/bin/python: No module named dvc") == (
        "the package dvc is missing: make setup installs what is locked."
    )
    assert said("'./my dir/dvc.yaml' is invalid (possible merge conflicts).") == (
        "my dir/dvc.yaml holds the marks of a merge conflict: git diff -- 'my dir/dvc.yaml' shows them, "
        "git add 'my dir/dvc.yaml' ends the conflict."
    )
    assert said("ERROR: something else.") == "something else."
