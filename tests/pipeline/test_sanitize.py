"""compute-sanitizer on a kernel's providers: its command line, the reading of its output, and the provider to
blame.

A fake compute-sanitizer stands in for it. Its messages come from the manual.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline.contract import Gpu
from kernel_pipeline.machine import device
from kernel_pipeline.machine.device import Device
from pipeline import sanitize as stage
from pipeline.command.options import SanitizeConfig
from pipeline.command.run import run_stage
from pipeline.inspection import sanitizer, target
from tests import factory
from tests.commands import exit_code

CLEAN = {
    "memcheck": "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
    "racecheck": (
        "========= COMPUTE-SANITIZER\n"
        "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    ),
}
OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at void softmax_rows<float>(float *, const float *)+0x90 in cuda.cu:39
=========     by thread (1,0,0) in block (0,0,0)
=========     Access to 0x7f36ca000424 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f36ca000400 of size 36 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at void softmax_rows<float>(float *, const float *)+0x90 in cuda.cu:39
=========     by thread (2,0,0) in block (0,0,0)
=========     Access to 0x7f36ca000428 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f36ca000400 of size 36 bytes
=========
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum_rows(int *, int *)+0x90 in cuda.cu:41
=========     and Read access at sum_rows(int *, int *)+0x100 in cuda.cu:51 [508 hazards]
=========
========= Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__ 0x8c in block (0) :
=========     Write Thread (35,0,0) at sum_rows(int *, int *)+0x90 in cuda.cu:44
=========     Read Thread (32,0,0) at sum_rows(int *, int *)+0x120 in cuda.cu:56
=========     Current Value : 35
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warnings)
"""
UNSUPPORTED = "========= COMPUTE-SANITIZER\n========= Error: Device not supported\n"


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command see an H200."""
    chosen = Device(kind="cuda", name="NVIDIA H200", index=0)
    monkeypatch.setattr(device, "resolve", lambda wanted: chosen)
    monkeypatch.setattr(device, "capabilities", lambda one: Gpu((9, 0), 132, 227 << 10, 50 << 20))
    monkeypatch.setattr(target, "fingerprint", lambda one: factory.environment())


Fake = Callable[..., Path]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Return a function that puts a fake program on PATH. For each provider and tool the program prints
    the given text, or else a clean report. The file ``asked`` logs its command lines."""

    def make(says: dict[str, str] | None = None, failures: dict[str, str] | None = None) -> Path:
        program = tmp_path / "bin" / "compute-sanitizer"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"""#!{sys.executable} -SE
import json, os, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1.0 (build 36400806) (public-release)")
    sys.exit()
plan = json.load(open(words[-2]))
providers = sorted({{one["point"]["provider"] for one in plan["points"]}})
tool = words[words.index("--tool") + 1]
caching = os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"]
with open({str(tmp_path / "asked")!r}, "a") as asked:
    asked.write(json.dumps({{"words": words, "plan": plan, "tool": tool, "providers": providers}}) + "\\n")
log = {CLEAN!r}.get(tool, "")
for who, said in {says or {}!r}.items():
    name, _, under = who.partition("/")
    if name in providers and under == tool:
        log = said
open(words[words.index("--log-file") + 1], "w").write(log)
json.dump({failures or {}!r} if caching == "1" else {{"caching": "on"}}, open(words[-1], "w"))
"""
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")
        return tmp_path / "asked"

    return make


def command(folder: Path, *options: str, code: int = 0) -> list[dict[str, Any]]:
    """Run the command. Return the rows in its file."""
    words = ("kernel=softmax", f"output={folder}/results", *options)
    assert exit_code(run_stage, "sanitize", SanitizeConfig, stage.run, *words) == code
    found = folder.glob("results/sanitizer/softmax/nvidia-h200.jsonl")
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def test_clean_providers_are_checked_together_and_written_down(
    tmp_path: Path, on_a_gpu: None, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = fake()
    rows = command(tmp_path)
    own = {"cuda", "triton_online", "triton_row"}
    assert own <= {row["provider"] for row in rows}
    assert not {"torch", "torch_compile", "cpp"} & {row["provider"] for row in rows}
    assert {(row["tool"], row["status"], row["errors"]) for row in rows} == {
        ("memcheck", "clean", 0),
        ("racecheck", "clean", 0),
    }
    assert {row["version"] for row in rows} == {"2025.3.1.0"}
    assert [one["columns"] for one in rows[0]["problems"]] == [37, 64]
    calls = [json.loads(line) for line in asked.read_text().splitlines()]
    assert [call["tool"] for call in calls] == ["memcheck", "racecheck"], "one process a tool"
    words = " ".join(calls[0]["words"])
    assert (
        "--target-processes application-only" in words and "-m pipeline.inspection.watched_process" in words
    )
    assert "--padding 1024" in words
    assert calls[0]["plan"]["points"][0]["where"] == "softmax"
    printed = capsys.readouterr().out
    assert "softmax on nvidia-h200: compute-sanitizer 2025.3.1.0" in printed
    assert "Left out: cpp (runs on a CPU only)." in printed
    assert "torch_compile, numba (not written here in CUDA or Triton)." in printed


def test_who_is_to_blame_is_found_and_the_command_fails(
    tmp_path: Path, on_a_gpu: None, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = fake({"cuda/memcheck": OUT_OF_BOUNDS, "triton_row/racecheck": RACE})
    both = "provider=[cuda,triton_row]"
    rows = command(tmp_path, both, code=1)
    counts = {(r["provider"], r["tool"]): (r["status"], r["errors"], r["warnings"]) for r in rows}
    assert counts == {
        ("triton_row", "memcheck"): ("clean", 0, 0),
        ("triton_row", "racecheck"): ("found", 1, 1),
        ("cuda", "memcheck"): ("found", 2, 0),
        ("cuda", "racecheck"): ("clean", 0, 0),
    }
    findings = {(row["provider"], row["tool"]): row.get("findings", []) for row in rows}
    assert findings["cuda", "memcheck"] == [
        "Invalid __global__ write of size 4 bytes "
        "at void softmax_rows<float>(float *, const float *)+0x90 in cuda.cu:39 (2 times)"
    ]
    race, hazard = findings["triton_row", "racecheck"]
    assert race.endswith("and Read access at sum_rows(int *, int *)+0x100 in cuda.cu:51 [508 hazards]")
    assert "Write at sum_rows(int *, int *)+0x90 in cuda.cu:44 Read at" in hazard
    calls = [json.loads(line)["providers"] for line in asked.read_text().splitlines()]
    assert calls == [["cuda", "triton_row"], ["triton_row"], ["cuda"]] * 2
    assert "cuda, memcheck: Invalid __global__ write of size 4 bytes at void" in capsys.readouterr().out

    fake()
    rows = command(tmp_path, "provider=cuda")
    assert {row["tool"]: row["status"] for row in rows if row["provider"] == "cuda"} == {
        "memcheck": "clean",
        "racecheck": "clean",
    }
    assert len(rows) == 4, "the other provider's rows stay"


@pytest.mark.parametrize(
    ("says", "failures", "reason"),
    [
        (UNSUPPORTED, {}, "Device not supported"),
        ("", {}, "it gave no summary (it says nothing)"),
        (
            CLEAN["memcheck"],
            {"cuda-x": "RuntimeError: no such launch"},
            "cuda-x: RuntimeError: no such launch",
        ),
    ],
)
def test_what_was_not_checked_is_not_clean(
    tmp_path: Path, on_a_gpu: None, fake: Fake, says: str, failures: dict[str, str], reason: str
) -> None:
    fake({"cuda/memcheck": says}, failures)
    (row,) = command(tmp_path, "provider=cuda", "tools=memcheck", code=1)
    assert (row["status"], row["reason"]) == ("failed", reason)


def test_without_a_gpu_or_the_tool_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, "device=cpu", code=2) == []
    said = capsys.readouterr().err
    assert said.startswith("error: compute-sanitizer needs an NVIDIA GPU") and said.count("\n") == 1

    monkeypatch.setattr(device, "resolve", lambda wanted: Device(kind="cuda", name="NVIDIA H200", index=0))
    monkeypatch.setattr(target, "fingerprint", lambda one: factory.environment())
    monkeypatch.setattr(sanitizer, "_candidates", lambda environment: iter([tmp_path / "nowhere"]))
    assert command(tmp_path, code=2) == []
    said = capsys.readouterr().err
    assert said.startswith("error: compute-sanitizer was not found: install") and said.count("\n") == 1

    assert command(tmp_path, "tools=memchek", code=2) == []
    assert "Did you mean 'memcheck'?" in capsys.readouterr().err


def test_a_package_that_can_start_nothing_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: Fake
) -> None:
    """Older PyPI packages have the program in ``bin/``, but not the files with which it starts other
    programs."""
    fake()
    program = tmp_path / "bin" / "compute-sanitizer"
    for place in ("cu12/bin", "cu13/bin", "cu13/compute-sanitizer"):
        (tmp_path / "nvidia" / place).mkdir(parents=True)
        shutil.copy(program, tmp_path / "nvidia" / place)
    (tmp_path / "nvidia" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sanitizer, "SYSTEM_CUDA", tmp_path)
    program.unlink()
    found = sanitizer.find({"PATH": str(tmp_path)})
    assert found.path == tmp_path / "nvidia" / "cu13" / "compute-sanitizer" / "compute-sanitizer"
    assert found.version == "2025.3.1.0"
