"""The code that measures is a version that is listed, with evidence; rows of edited code say so."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import ROOT
from pipeline.keys import versions
from tests.processes import completed

WHAT_TO_DO = """
the code that times and verifies ({ways}) is listed under no version in pipeline/keys/versions.yaml.
If times may differ: add a version there (number, date, what changed and why, and one entry of digests with
a word for each way of timing that it concerns), then
    python -m pipeline.keys.versions replace "The code that this version begins with."
and rows measured before are old. If they can't: time both trees in turns on a GPU,
    python -m pipeline.compare kernel=softmax a=HEAD b=tree
and where they agree within 1 %, list the digests under today's version with that as evidence:
    python -m pipeline.keys.versions list "A/B on <GPU>: <n> points, within <x> %\""""


def test_the_code_that_measures_is_a_version_that_is_listed() -> None:
    kinds = {way: "cpu" if way == "cpu" else "cuda" for way in versions.TIMERS}
    found = {way: versions.measurement(kind, way) for way, kind in kinds.items()}
    known = versions.known()
    ways = ", ".join(way for way, found in found.items() if found != str(known[versions.latest(way)].number))
    assert not ways, WHAT_TO_DO.format(ways=ways)


def test_versions_are_numbered_and_say_what_changed() -> None:
    known = versions.known()
    assert [one.number for one in known] == list(range(len(known)))
    assert not known[0].digests, "of what was measured before versions, nothing is known"
    entries = [one for version in known for one in version.digests]
    every = [found for one in entries for way in versions.TIMERS if (found := getattr(one, way)) is not None]
    assert len(set(every)) == len(every), "a digest is of one version alone"
    assert all(len(one.evidence) > 20 for version in known for one in version.digests)


def versions_in(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.keys.versions", *words]
    return completed(command, cwd=tree)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for part in ("kernel_pipeline", "kernels", "pipeline"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_edited_code_says_so_until_it_is_listed(tree: Path) -> None:
    timer = tree / "kernel_pipeline" / "timing" / "timers" / "cpu.py"
    last = versions.known()[versions.latest("cpu")].number
    timer.write_text(timer.read_text().replace("SHORTEST_SAMPLE_US = 200.0", "SHORTEST_SAMPLE_US = 300.0"))
    lines = versions_in(tree).stdout.splitlines()[-len(versions.TIMERS) :]
    assert [line for line in lines if "edited" in line] == [lines[0]] and lines[0].startswith("cpu: edited ")

    assert f"cpu: {last}" in versions_in(tree, "list", "planted: no time differs").stdout
    timer.write_text(timer.read_text().replace("SHORTEST_SAMPLE_US = 300.0", "SHORTEST_SAMPLE_US = 200.0"))
    assert "edited" not in versions_in(tree).stdout, "what was listed before stays"
    listed = tree / "pipeline/keys/versions.yaml"
    others = [one for one in listed.read_text().split("- number:") if "planted" not in one]
    versions_in(tree, "replace", "planted: anew")
    assert listed.read_text().rpartition("- number:")[2].count("evidence:") == 1
    assert [one for one in listed.read_text().split("- number:") if "planted" not in one] == others
    assert "edited" not in versions_in(tree).stdout, "other ways of timing keep their versions"


def test_words_that_are_none_are_said(tree: Path) -> None:
    said = versions_in(tree, "lst", "x")
    assert said.returncode == 1 and said.stderr.startswith("error: write no argument, or list")
