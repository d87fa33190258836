"""Inductor's test of vector instructions runs once, and later processes get its result."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kernel_pipeline.toolchain import inductor
from kernel_pipeline.toolchain.inductor import PASSED, is_tried, trying, variables


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a host on which no trial was made."""
    monkeypatch.setattr(inductor, "LOCAL", tmp_path)
    monkeypatch.delenv(PASSED, raising=False)


def try_instructions(environment: Mapping[str, str] | None = None) -> bool:
    with trying(environment):
        pass
    return is_tried()


def trial(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(inductor, "TRIAL", f"raise SystemExit({code})")


def test_what_passed_is_told_to_later_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_tried() and PASSED not in variables()
    trial(monkeypatch, 0)
    assert try_instructions()
    assert is_tried() and variables()[PASSED] == "1"


def test_what_did_not_pass_is_tried_by_whoever_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, 1)
    assert not try_instructions()
    assert not is_tried() and PASSED not in variables()


@pytest.mark.parametrize("changed", ["compiler", "torch", "cpu"])
def test_another_compiler_torch_or_cpu_is_tried_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str
) -> None:
    trial(monkeypatch, 0)
    assert try_instructions() and is_tried()
    if changed == "compiler":
        other = tmp_path / "other-c++"
        other.write_text("#!/bin/sh\necho another\n")
        other.chmod(0o755)
        monkeypatch.setenv("CXX", str(other))
    elif changed == "torch":
        found = inductor.installed_torch()
        other_torch = type(found)(found.folder, "9.9", found.cuda)
        monkeypatch.setattr(inductor, "installed_torch", lambda: other_torch)
    else:
        (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx2\n")
        monkeypatch.setattr(inductor, "CPUINFO", tmp_path / "cpuinfo")
    assert not is_tried() and PASSED not in variables()


def test_what_a_user_said_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, 0)
    assert try_instructions()
    monkeypatch.setenv(PASSED, "0")
    assert is_tried() and PASSED not in variables()


@pytest.mark.slow
def test_the_trial_says_what_inductor_finds(tmp_path: Path) -> None:
    """The trial runs in a process with an empty Inductor cache. It fails with a compiler that compiles
    nothing."""
    fresh = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert not try_instructions(fresh | {"CXX": str(broken)})
    if "avx2" in Path("/proc/cpuinfo").read_text():
        assert try_instructions(fresh)
