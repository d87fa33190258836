"""Commands of stages that run beside others: real processes, and what `make repro` tells them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline import ROOT
from pipeline.command import early
from pipeline.command.early import BESIDE, Early, command_of
from pipeline.repro import Stages
from tests.project import wait_until

DVC = """
stages:
  build:
    cmd:
      - >-
        sh -c 'nice >{folder}/niceness; touch {folder}/${{kernels}}'
      - exit 1
  codegen:
    cmd: sh -c 'echo $0 >{folder}/begun; sleep 1000'
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two stages, on a host with cores to spare."""
    (tmp_path / "dvc.yaml").write_text(DVC.format(folder=tmp_path))
    (tmp_path / "params.yaml").write_text("kernels: gelu,square\n")
    monkeypatch.setattr(early, "cpu_threads", lambda: early.FEWEST_CORES)
    return tmp_path


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(autouse=True)
def before() -> Iterator[set[psutil.Process]]:
    """The processes that other tests have left; nothing else is left here."""
    found = children()
    yield found
    assert children() <= found


def test_a_stage_that_compiles_runs_beside_one_that_measures(root: Path) -> None:
    log = io.StringIO()
    with Early(root, log) as made:
        made.stage_begins("ceilings", "cuda")
        wait_until((root / "gelu,square").exists)
        wait_until(lambda: made.look() or "build ran" in log.getvalue())
        assert log.getvalue().startswith(f"Beside ceilings: sh -c 'nice >{root}/niceness;")
        assert log.getvalue().splitlines()[1].startswith("build ran beside others for ")
    assert int((root / "niceness").read_text()) == min(19, os.nice(0) + 10)


def test_it_ends_when_its_own_stage_begins_or_nobody_reads_any_more(
    root: Path, before: set[psutil.Process]
) -> None:
    for ends in ("codegen", None):
        (root / "begun").unlink(missing_ok=True)
        log = io.StringIO()
        with Early(root, log) as made:
            made.stage_begins("finals", "cuda")
            wait_until((root / "begun").exists)
            wait_until(lambda: (root / "begun").read_text() == "offline=true\n")
            made.stage_begins("profile", "cuda")
            assert children() - before, "another stage does not end it"
            if ends is not None:
                made.stage_begins(ends, "cuda")
                assert children() <= before
        assert log.getvalue().endswith(" s, not to its end.\n")


@pytest.mark.parametrize(("kind", "cores"), [("cpu", 64), ("cuda", 7)])
def test_nothing_runs_beside_what_would_feel_it(
    root: Path, before: set[psutil.Process], monkeypatch: pytest.MonkeyPatch, kind: str, cores: int
) -> None:
    monkeypatch.setattr(early, "cpu_threads", lambda: cores)
    log = io.StringIO()
    with Early(root, log) as made:
        made.stage_begins("ceilings", kind)
        made.stage_begins("finals", kind)
        assert children() <= before
    assert log.getvalue() == ""


def test_the_repositorys_own_stages_have_commands() -> None:
    for beside, (stage, *_) in BESIDE.items():
        assert command_of(ROOT, beside) is not None
        program, _, module, *rest = command_of(ROOT, stage) or []
        assert (program, module) == ("pipeline/python", f"pipeline.{stage}")
        if stage != "publish":
            assert rest[0].startswith("kernel=vector_add,") and "lazily=true" in rest


def test_make_repro_tells_it_of_each_stage_that_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []

    class Told(Early):
        def stage_begins(self, name: str, kind: str) -> None:
            told.append((name, kind))

    monkeypatch.setattr("pipeline.repro.machine", lambda: {"kind": "cuda", "gpu": "nvidia-h200"})
    lines = ["Running stage 'ceilings':\n", "> x\n", "Stage 'sweep' didn't change, skipping\n"]
    log = io.StringIO()
    Stages().read([*lines, "Running stage 'finals':\n"], log, Told(ROOT, log))
    assert told == [("ceilings", "cuda"), ("finals", "cuda")]
