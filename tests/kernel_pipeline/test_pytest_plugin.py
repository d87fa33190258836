"""The pytest plugin in another project."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import completed
from tests.project import ROOT

KERNELS = """\
from time import sleep

def product(x):
    sleep({} / 1e3)
    return x * x
"""

TESTS = """\
import torch
from kernels_of_mine import product

def test_product(kernel_bench):
    result = kernel_bench(product, torch.randn(20, 20), seconds=0.02)
    assert result.median_us > 0

def test_without_the_fixture():
    assert {passes}
"""


class Mine:
    """A repository with a function and its tests, and a commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        # Other tests keep the cores busy, and the inputs that a large cache does not hold take seconds.
        (folder / "conftest.py").write_text(
            "from kernel_pipeline import known_ceilings\nfrom kernel_pipeline.timing import stopwatch\n"
            "known_ceilings.BUSY = 1.0\nstopwatch.last_level_cache = lambda device: 1 << 20\n"
        )
        self.write(10)
        self.commit()

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        subprocess.run(["git", *who, *words], cwd=self.folder, check=True, capture_output=True)

    def write(self, times: int, passes: bool = True) -> None:
        (self.folder / "kernels_of_mine.py").write_text(KERNELS.format(times))
        (self.folder / "test_mine.py").write_text(TESTS.format(passes=passes))

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "-q", "-m", "x")

    def pytest(self, *words: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        return completed(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *words],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": paths},
        )


@pytest.fixture
def mine(tmp_path: Path) -> Mine:
    return Mine(tmp_path / "mine")


WRONG = """
def test_wrong(kernel_bench):
    kernel_bench(torch.square, torch.randn(9), reference=torch.abs, seconds=0.01)
"""


@pytest.mark.slow
def test_times_are_printed_kept_and_on_a_page_and_a_wrong_output_fails_its_test(mine: Mine) -> None:
    with (mine.folder / "test_mine.py").open("a") as file:
        file.write(WRONG)
    done = mine.pytest("--kernel-save=times.jsonl", "--kernel-report=times.html")
    assert done.returncode == 1 and "1 failed, 2 passed" in done.stdout, done.stdout
    assert "the output is wrong: 9 of 9 elements" in done.stdout
    assert "test_product: product: " in done.stdout
    assert "Timed on the CPU, where the inputs are." in done.stdout
    row = json.loads((mine.folder / "times.jsonl").read_text().splitlines()[0])
    assert (row["test"], row["name"], row["valid"]) == ("test_mine.py::test_product", "product", True)
    assert len(row["samples_us"]) >= 3
    assert "<td>test_mine.py::test_product</td>" in (mine.folder / "times.html").read_text()


def test_torch_is_imported_only_for_the_fixture(mine: Mine) -> None:
    (mine.folder / "conftest.py").unlink()
    (mine.folder / "test_mine.py").write_text(
        "import sys\ndef test_light():\n    assert 'torch' not in sys.modules\n"
    )
    assert mine.pytest().returncode == 0


@pytest.mark.slow
def test_two_commits_are_compared_in_turns(mine: Mine) -> None:
    mine.write(40, passes=False)
    with (mine.folder / "test_mine.py").open("a") as file:
        file.write("\ndef test_new(kernel_bench):\n    kernel_bench(product, torch.randn(9), seconds=0.02)\n")
    slower = mine.pytest("--kernel-compare=main", "--kernel-rounds=3", "--kernel-report=page.html")
    assert slower.returncode == 1, slower.stdout
    assert "1 failed, 1 passed, 1 deselected" in slower.stdout
    assert "SlowerError: test_product: slower: " in slower.stdout and ", 3 rounds" in slower.stdout
    assert "test_new: " in slower.stdout and ", new" in slower.stdout
    assert "<td>slower</td>" in (mine.folder / "page.html").read_text()
    listed = completed(["git", "worktree", "list"], cwd=mine.folder, check=True)
    assert listed.stdout.count("\n") == 1, "no worktree is left"


@pytest.mark.slow
def test_a_wrong_output_fails_its_test_in_a_comparison_too(mine: Mine) -> None:
    with (mine.folder / "test_mine.py").open("a") as file:
        file.write(WRONG)
    done = mine.pytest("--kernel-compare=main", "--kernel-rounds=2")
    assert done.returncode == 1 and "SlowerError: test_wrong: the output is wrong: 9 of 9" in done.stdout


@pytest.mark.slow
def test_a_comparison_whose_tests_crash_is_no_success(mine: Mine) -> None:
    (mine.folder / "kernels_of_mine.py").write_text("raise OSError('no library')\n")
    mine.commit()
    mine.write(20)
    done = mine.pytest("--kernel-compare=main", "--kernel-rounds=2")
    assert done.returncode not in (0, 1), done.stdout
    assert "--kernel-compare: the tests gave no time at main:" in done.stdout + done.stderr
    assert "no library" in done.stdout + done.stderr


@pytest.mark.slow
def test_a_wrong_option_is_a_sentence(mine: Mine) -> None:
    (mine.folder / "conftest.py").unlink()  # which imports torch
    done = mine.pytest("--kernel-compare=nowhere")
    assert done.returncode != 0 and "--kernel-compare=nowhere: " in done.stdout + done.stderr
    assert "--kernel-rounds: write 2 or more" in mine.pytest("--kernel-rounds=1").stderr
    both = mine.pytest("--kernel-compare=main", "--kernel-save=times.jsonl")
    assert "leave out one of the options" in both.stderr
    assert "--kernel-report: gone is not a folder." in mine.pytest("--kernel-report=gone/page.html").stderr
