"""If standard output is on a full disk, a command ends with one sentence and its results are kept. If nobody
reads it any more, as after ``| head``, the command ends without a word."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from pipeline import ROOT

SENTENCE = (
    "error: can't write to the standard output: No space left on device. Results so far are kept; make room, "
    "or send the output elsewhere, and run the command again.\n"
)

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")


def run(*words: str, output: TextIO) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True, check=False)


def on_full(*words: str) -> subprocess.CompletedProcess[str]:
    with Path("/dev/full").open("w") as full:
        return run(*words, output=full)


@needs_full
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("pipeline.sweep", "--help"), ("pipeline.publish", "tracking=none")], ids=" ".join
)
def test_a_full_disk_is_a_sentence(words: tuple[str, ...]) -> None:
    done = on_full(*words)
    assert (done.returncode, done.stderr) == (2, SENTENCE)


@needs_full
def test_what_was_done_is_kept(tmp_path: Path) -> None:
    done = on_full("pipeline.new", f"kernel={tmp_path}/mine")
    assert (done.returncode, done.stderr) == (2, SENTENCE)
    assert (tmp_path / "mine/kernel.yaml").is_file()
    mistake = on_full("pipeline.new", f"kernel={tmp_path}/mine")
    assert "exists already" in mistake.stderr and mistake.stderr.count("\n") == 1


CLOSED = (
    ("pipeline.environment",),
    ("pipeline.sweep", "--help"),
    ("kernel_pipeline", "--version"),
    ("kernel_pipeline", "results", "best", "kernel=softmax", "gpu=nvidia-h200"),
    ("kernel_pipeline", "bench", "torch:square", "--shape", "4", "--device", "cpu"),
)


@pytest.mark.slow
@pytest.mark.parametrize("words", CLOSED, ids=" ".join)
def test_a_reader_that_closes_the_pipe_ends_a_command_without_a_word(words: tuple[str, ...]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as pipe:
        done = run(*words, output=pipe)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
