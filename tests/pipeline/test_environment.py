from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import environment
from pipeline.config import EnvironmentConfig
from pipeline.errors import UserError
from pipeline.measure import device, toolchain


def compiler(path: Path, version: str) -> Path:
    path.write_text(f'#!/bin/sh\necho "{version}"\n')
    path.chmod(0o755)
    return path


def test_both_files_say_the_same_and_a_second_look_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything below the stage runs again when its file changes, and only then."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    config = EnvironmentConfig(device="cpu", output=tmp_path / "results")
    environment.run(config)
    (kept,) = (tmp_path / "results/environment").iterdir()
    current = tmp_path / environment.CURRENT
    told = dict.fromkeys(device.TOLD)
    assert json.loads(current.read_bytes()) | told == json.loads(kept.read_bytes())
    assert kept.stem == json.loads(kept.read_bytes())["gpu"] == device.cpu().slug
    times = [path.stat().st_mtime_ns for path in (current, kept)]
    environment.run(config)
    assert [path.stat().st_mtime_ns for path in (current, kept)] == times


def test_another_image_changes_what_goes_with_the_results_and_nothing_that_a_stage_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image is built again after an edit; the machine and what is installed are the same."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    config = EnvironmentConfig(device="cpu", output=tmp_path / "results")
    environment.run(config)
    before = (tmp_path / environment.CURRENT).read_bytes(), device.fingerprint(device.cpu()).digest
    monkeypatch.setenv("PIPELINE_IMAGE", "kernel-pipeline:cpu@sha256:1a6e")
    monkeypatch.setenv("PIPELINE_BASE_IMAGE", "python:9@sha256:ba5e")
    environment.run(config)
    assert before == ((tmp_path / environment.CURRENT).read_bytes(), device.fingerprint(device.cpu()).digest)
    (kept,) = (tmp_path / "results/environment").iterdir()
    record = json.loads(kept.read_bytes())
    assert record["image"] == "kernel-pipeline:cpu@sha256:1a6e"
    assert record["base_image"] == "python:9@sha256:ba5e"


def test_the_compilers_are_those_that_a_build_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$CXX goes before what PATH has, and the CUDA compiler need not be on PATH at all."""
    before = device.fingerprint(device.cpu())
    assert before.cxx == toolchain.find_cxx().version
    monkeypatch.setenv("CXX", str(compiler(tmp_path / "mine", "mine 99.1")))
    after = device.fingerprint(device.cpu())
    assert after.cxx == "mine 99.1"
    assert after.digest != before.digest


def test_without_a_compiler_there_is_still_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> toolchain.Nvcc:
        raise UserError(toolchain.NO_NVCC)

    monkeypatch.setattr(device, "find_nvcc", none)
    monkeypatch.setenv("CXX", "nowhere-to-be-found")
    found = device.fingerprint(device.cpu())
    assert (found.nvcc, found.cxx) == (None, None)
