"""Built libraries go through a DVC remote from one clone to another, by a folder and by the S3 protocol."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import requests

from tests.project import Project, ran

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("end-to-end")]

KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "kernels"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an S3-compatible server on loopback with an empty bucket. Yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path_factory.mktemp("s3") / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not answers(address):
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        boto3.client(
            "s3",
            endpoint_url=address,
            region_name=KEYS["AWS_DEFAULT_REGION"],
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        ).create_bucket(Bucket=BUCKET)
        yield address
    finally:
        server.terminate()
        server.wait()


def answers(address: str) -> bool:
    try:
        return requests.get(address, timeout=60).ok
    except requests.ConnectionError:
        return False


def clone(project: Project, folder: Path) -> Project:
    """Clone the project as another machine would, with its own caches."""
    made = Project(folder)
    project.run("git", "clone", "--quiet", str(project.root), str(made.root))
    return made


def shared(project: Project) -> dict[str, str]:
    """Return the files that are equal on all machines: no environment, no measurements, no locks."""
    files = project.tree("mlflow.db", "mlartifacts", "build/environment.json", "local/")
    return {name: digest for name, digest in files.items() if not name.endswith(".lock")}


@pytest.mark.long
def test_what_one_clone_pushed_another_pulls_and_then_has_nothing_to_build(
    project: Project, s3: str, tmp_path: Path
) -> None:
    second = clone(project, tmp_path / "second")
    for one in (project, second):
        one.python("dvc", "remote", "add", "--local", "--force", "folder", str(tmp_path / "store"))
        one.python("dvc", "remote", "add", "--local", "--force", "bucket", f"s3://{BUCKET}/dvc")
        one.python("dvc", "remote", "modify", "--local", "bucket", "endpointurl", s3)
    project.python("dvc", "repro", "share/dvc.yaml")
    project.commit("What is shared")
    second.run("git", "pull", "--quiet")
    pulled = []
    for remote in ("folder", "bucket"):
        project.python("dvc", "push", "--remote", remote, env=KEYS)
        shutil.rmtree(second.root / ".dvc" / "cache", ignore_errors=True)
        shutil.rmtree(second.root / "build", ignore_errors=True)
        second.python("dvc", "pull", "--remote", remote, "--allow-missing", env=KEYS)
        pulled.append(shared(second))
    before = pulled[0]
    assert pulled[1] == before
    assert any(name.startswith("build/kernels/square/") for name in before), (
        "the libraries came with the pull"
    )
    # On a GPU, the results came with git and nothing is due. A CPU of another checkout counts as another
    # machine, so its stages run, but the libraries are already built.
    stages = ran(second.python("dvc", "repro", "build").stdout)
    on_cpu = second.gpu().startswith("cpu-")
    assert stages == ["environment", *["build"] * on_cpu]
    assert shared(second) == before
    if not on_cpu:
        assert second.repro() == ["environment", "publish"], "its own MLflow has nothing yet"
    # The remote's address and credentials stay on each machine.
    assert ".dvc" not in second.run("git", "status", "--porcelain").stdout
