"""What people wait for is what they would type, in a clone of its own."""

from __future__ import annotations

import re
import subprocess
import sys

from pipeline import ROOT
from pipeline.bench_startup import CUDA_EDIT, TRITON_EDIT


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


def test_the_edits_fit_the_sources() -> None:
    assert TRITON_EDIT[0] in (ROOT / "kernels/softmax/triton.py").read_text()
    assert CUDA_EDIT not in (ROOT / "kernels/softmax/cuda.cu").read_text()
