"""Which GPU tests run side by side, which run alone, and which are smoke tests. These checks need no GPU."""

import os
import re
import sys
from pathlib import Path

import pytest

from pipeline import ROOT
from tests.processes import completed

TESTS = """
import time
from pathlib import Path

import pytest

from tests.gpu_sharing import much_memory

pytestmark = pytest.mark.gpu
LOG = Path(__file__).with_name("log")


def note(what):
    with LOG.open("a") as file:
        file.write(f"{what}\\n")


@pytest.fixture(scope="module")
def prepared():
    note("+alone")
    yield
    note("-alone")


@pytest.mark.alone
@pytest.mark.parametrize("number", range(3))
def test_alone(prepared, number):
    time.sleep(0.1)


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("name", ["softmax", "gelu"])
def test_beside_others(name, number):
    note("+shared")
    time.sleep(0.05)
    with much_memory():
        note("+much")
        time.sleep(0.02)
        note("-much")
    note("-shared")
"""


def run(folder: Path, *words: str, tests: str = TESTS, code: int = 0) -> tuple[str, list[str]]:
    """Run the tests. Return pytest's output and the lines that the tests logged."""
    (folder / "test_planted.py").write_text(tests)
    (folder / "log").write_text("")
    # The variables that pytest-xdist gives to its processes would make these tests one of them.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    command = [sys.executable, "-m", "pytest", "-p", "tests.gpu_sharing", "-p", "no:cacheprovider", "-c"]
    done = completed(
        [*command, os.devnull, "--rootdir", folder, *words, folder / "test_planted.py"],
        cwd=folder,
        env=own | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, (folder / "log").read_text().splitlines()


@pytest.mark.slow
def test_what_is_alone_overlaps_with_nothing_and_one_process_at_a_time_has_much_memory(
    tmp_path: Path,
) -> None:
    _, notes = run(tmp_path, "-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder")
    running = dict.fromkeys(("alone", "shared", "much"), 0)
    for note in notes:
        running[note[1:]] += 1 if note[0] == "+" else -1
        assert running["much"] <= 1
        assert not (running["alone"] and running["shared"]), notes
    assert (notes.count("+shared"), notes.count("+alone")) == (24, 1)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("gpu-tests-")]


@pytest.mark.slow
def test_a_failure_is_printed_when_it_happens(tmp_path: Path) -> None:
    """A run that is stopped has no summary."""
    tests = """
import pytest

pytestmark = pytest.mark.gpu


def test_wrong():
    raise ValueError("planted")


def test_stops():
    pytest.exit("stopped")
"""
    out, _ = run(tmp_path, "-s", tests=tests, code=2)
    assert re.search(r"FAILED test_planted\.py::test_wrong after \d+ s: ValueError: planted", out), out
