import json
import shutil
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import compilers, device
from kernel_pipeline.machine import fingerprint as machine
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.environment import UNKEYED
from pipeline import environment
from pipeline.command.options import EnvironmentConfig
from pipeline.store import results


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a temporary folder as the repository that the stage writes to."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    for module in (results, machine):
        monkeypatch.setattr(module, "LOCAL", tmp_path / "local")
    return tmp_path


def compiler(path: Path, version: str) -> Path:
    path.write_text(f'#!/bin/sh\necho "{version}"\n')
    path.chmod(0o755)
    return path


def test_both_files_say_the_same_and_a_second_look_writes_nothing(root: Path) -> None:
    """Every other stage runs again when this stage's file changes, so an equal environment must not write
    it."""
    config = EnvironmentConfig(device="cpu", output=root / "outputs")
    environment.run(config)
    (kept,) = (root / "outputs/environment").iterdir()
    current = root / results.CURRENT
    told = dict.fromkeys(UNKEYED)
    assert json.loads(current.read_bytes()) | told == json.loads(kept.read_bytes())
    assert UNKEYED.isdisjoint(json.loads(current.read_bytes()))
    assert kept.stem == json.loads(kept.read_bytes())["gpu"] == device.cpu().slug
    times = [path.stat().st_mtime_ns for path in (current, kept)]
    environment.run(config)
    assert [path.stat().st_mtime_ns for path in (current, kept)] == times


def test_a_cpus_file_goes_to_this_hosts_own_results(root: Path) -> None:
    environment.run(EnvironmentConfig(device="cpu", output=root / "results"))
    assert list((root / "results/environment").iterdir()) == [], "DVC finds the folder that it asked for"
    assert [path.stem for path in (root / "local/results/environment").iterdir()] == [device.cpu().slug]


def test_where_this_hosts_results_are_gone_everything_runs_again(root: Path) -> None:
    """All stages depend on build/environment.json, which holds the digest of a number that is drawn once
    into local/."""
    config = EnvironmentConfig(device="cpu", output=root / "results")

    def host() -> str:
        environment.run(config)
        return str(json.loads((root / results.CURRENT).read_bytes())["host"])

    first = host()
    assert host() == first
    assert (root / "local/host").read_text().strip() not in first, "it tells nothing of what was drawn"
    shutil.rmtree(root / "local")
    second = host()
    assert second != first
    assert host() == second


def test_another_image_changes_what_goes_with_the_results_and_nothing_that_a_stage_depends_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image is rebuilt after every edit, but the machine and the installed packages stay the same."""
    config = EnvironmentConfig(device="cpu", output=root / "outputs")
    environment.run(config)
    before = (root / results.CURRENT).read_bytes(), fingerprint(device.cpu()).digest
    monkeypatch.setenv("PIPELINE_IMAGE", "kernel-pipeline:cpu@sha256:1a6e")
    monkeypatch.setenv("PIPELINE_BASE_IMAGE", "python:9@sha256:ba5e")
    environment.run(config)
    assert before == ((root / results.CURRENT).read_bytes(), fingerprint(device.cpu()).digest)
    (kept,) = (root / "outputs/environment").iterdir()
    record = json.loads(kept.read_bytes())
    assert record["image"] == "kernel-pipeline:cpu@sha256:1a6e"
    assert record["base_image"] == "python:9@sha256:ba5e"


def test_the_compilers_are_those_that_a_build_uses(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$CXX has priority over PATH, and nvcc need not be on PATH."""
    before = fingerprint(device.cpu())
    assert before.cxx == machine.find_cxx().version
    monkeypatch.setenv("CXX", str(compiler(root / "mine", "mine 99.1")))
    after = fingerprint(device.cpu())
    assert after.cxx == "mine 99.1"
    assert after.digest != before.digest


def test_without_a_compiler_there_is_still_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> machine.Nvcc:
        raise UserError(compilers.NO_NVCC)

    monkeypatch.setattr(machine, "find_nvcc", none)
    monkeypatch.setenv("CXX", "nowhere-to-be-found")
    found = fingerprint(device.cpu())
    assert (found.nvcc, found.cxx) == (None, None)
