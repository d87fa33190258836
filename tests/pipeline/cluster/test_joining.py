"""A cluster that is not there, not Ray's, or of another version: one sentence, and exit code 2."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from pipeline import ROOT
from pipeline.cluster import engine
from tests.pipeline.cluster import hosts
from tests.planted import outside
from tests.processes import completed

ASKED = ["device=cpu", "cluster=ray", "tracking=none"]


def swept(kernel: str = "softmax", **variables: str) -> subprocess.CompletedProcess[str]:
    return completed(
        [sys.executable, "-m", "pipeline.sweep", f"kernel={kernel}", *ASKED],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | variables,
    )


def said(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("error: ") == 1
    return done.stderr.strip().splitlines()[-1]


def test_without_ray_a_sentence_says_how_it_is_installed(tmp_path: Path) -> None:
    # As if it were not there, wherever it is.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n_find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'ray' else _find(name, *rest)\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    assert said(swept(PYTHONPATH=path)) == (
        "error: cluster= needs Ray, which is not installed: run python locks/install.py ray with the Python "
        "of this command."
    )


def test_a_kernel_outside_of_the_repository_is_refused(tmp_path: Path) -> None:
    folder = outside.write(tmp_path)
    sentence = said(swept(str(folder)))
    assert sentence.startswith(f"error: {folder} is outside of this repository, and only the")


def test_what_asks_for_a_cluster_imports_no_ray_before_it_does() -> None:
    done = completed(
        [sys.executable, "-X", "importtime", "-c", "import pipeline.cluster.cluster_devices, pipeline.sweep"],
        cwd=ROOT,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pipeline.cluster.engine" in imported and "ray" not in imported


_needs_ray = pytest.mark.skipif(engine.importlib.util.find_spec("ray") is None, reason="Ray is not installed")


@_needs_ray
@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "somewhere", "127.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_where_no_cluster_is(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError) as error, engine.joined("ray", "cpu"):
        pass
    assert str(error.value).startswith(f"the Ray cluster at {address} could not be joined: ")
    assert "Start one by ray start --head" in str(error.value)


@_needs_ray
def test_another_version_than_the_clusters_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(*arguments: object, **options: object) -> None:
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1"
        )

    monkeypatch.setattr(ray, "init", init)
    with socket.create_server(("127.0.0.1", 0)) as cluster:
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UserError) as error, engine.joined("ray", "cpu"):
            pass
    said = f"the Ray cluster at {address} could not be joined: Version mismatch: The cluster was started with"
    assert str(error.value).startswith(f"{said}: Ray: ")


def needs_ray(test: Callable[[], None]) -> Callable[[], None]:
    """A test that starts a cluster or looks for one: never beside another such test."""
    return pytest.mark.xdist_group("ray")(_needs_ray(test))


@needs_ray
@pytest.mark.slow
def test_without_a_cluster_a_sentence_says_how_one_is_started() -> None:
    sentence = said(swept())
    assert sentence.startswith(
        "error: the Ray cluster at auto could not be joined: Could not find any running"
    )
    assert "Start one by ray start --head" in sentence


@needs_ray
def test_a_cluster_that_was_killed_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("127.0.0.1:1")
    with pytest.raises(UserError, match="refused") as error, engine.joined("ray", "cpu"):
        pass
    assert str(error.value).startswith("the Ray cluster at auto could not be joined: ")


@needs_ray
@pytest.mark.slow
def test_a_cluster_that_starts_here_starts_no_process_that_no_actor_could_be() -> None:
    before, variables = set(hosts.idle()), dict(os.environ)
    with engine.joined("ray-local", "cpu"):
        assert len(engine.places("cpu")) == 1
        assert set(hosts.idle()) <= before
    assert dict(os.environ) == variables, "Ray's debugger is not left behind for breakpoint()"


@needs_ray
@pytest.mark.slow
def test_a_cluster_without_a_gpu_says_so() -> None:
    done = completed(
        [sys.executable, "-m", "pipeline.sweep", "kernel=softmax", "size=64", "cluster=ray-local"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert said(done) == (
        "error: the cluster that cluster=ray-local started here has no host with a GPU; write device=cpu to "
        "measure on CPUs."
    )
