"""memcheck on a submission, with a fake compute-sanitizer."""

import sys
from pathlib import Path

import pytest

from kernel_pipeline.machine import confinement
from kernel_pipeline.machine.confinement import Confinement
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.point import Point
from pipeline.inspection import sanitizer
from pipeline.inspection.memcheck import Memcheck

POINT = Point(kernel="kernel", provider="right", problem={"n": 16})

GPU = Device(kind="cuda", name="NVIDIA H200", index=0, uuid="GPU-1")

WRONG = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at softmax(float *)+0x90 in right.py:39
=========
========= ERROR SUMMARY: 1 error
"""

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def put(folder: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program on PATH that writes a log, and that tries to write a file beside itself."""
    program = folder / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(
        f"""#!{sys.executable} -SE
import json, os, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("Version 2025.3.1.0")
    sys.exit()
assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"
open({str(folder / "beside")!r}, "w").write("seen")
open(words[words.index("--log-file") + 1], "w").write({log!r})
plan = json.load(open(words[-2]))
assert [one["point"]["provider"] for one in plan["points"]] == ["right"]
json.dump({{}}, open(words[-1], "w"))
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return folder / "beside"


def limits() -> Confinement | None:
    """Return the limits of a GPU's worker, or None if this machine confines no process."""
    found = confinement.limits(None, [], shares_gpu=True)
    return None if confinement.why_not(found.replace(shares_gpu=False)) else found


@pytest.mark.parametrize(
    ("log", "says", "is_wrong"),
    [
        (CLEAN, "no error", False),
        (WRONG, "Invalid __global__ write of size 4 bytes at softmax(float *)+0x90 in right.py:39", True),
        ("", "did not run: it gave no summary (it says nothing)", False),
    ],
)
def test_a_submission_is_checked_confined(
    log: str, says: str, is_wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, confined = put(tmp_path, log, monkeypatch), limits()
    assert Memcheck(GPU, 0, 60)("kernel", POINT, confined) == (says, is_wrong)
    assert beside.exists() == (confined is None)


def test_without_a_gpu_or_the_tool_it_did_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = Device(kind="cpu", name="a CPU")
    assert Memcheck(cpu, 0, 60)("kernel", POINT, None) == ("did not run: this machine has no GPU", False)
    monkeypatch.setattr(sanitizer, "_candidates", lambda environment: iter([]))
    said, is_wrong = Memcheck(GPU, 0, 60)("kernel", POINT, None)
    assert said.startswith("did not run: compute-sanitizer was not found: ") and not is_wrong
