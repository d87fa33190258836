"""If standard output is on a full disk, a command ends with one sentence and its results are kept."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import ROOT

SENTENCE = (
    "error: can't write to the standard output: No space left on device. Results so far are kept; make room, "
    "or send the output elsewhere, and run the command again.\n"
)

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    with Path("/dev/full").open("w") as full:
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("pipeline.sweep", "--help"), ("pipeline.publish", "tracking=none")], ids=" ".join
)
def test_a_full_disk_is_a_sentence(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stderr) == (2, SENTENCE)


def test_what_was_done_is_kept(tmp_path: Path) -> None:
    done = run("pipeline.new", f"kernel={tmp_path}/mine")
    assert (done.returncode, done.stderr) == (2, SENTENCE)
    assert (tmp_path / "mine/kernel.yaml").is_file()
    mistake = run("pipeline.new", f"kernel={tmp_path}/mine")
    assert "exists already" in mistake.stderr and mistake.stderr.count("\n") == 1
