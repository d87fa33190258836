"""A host that reaches no package index: `make wheelhouse` here, `make setup` where there is no network."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.project import Project

pytestmark = [
    pytest.mark.skipif(
        "wheelhouse" not in os.environ.get("TEST_PROOFS", "").split(),
        reason="`make test-docker` gathers all packages, in minutes",
    ),
    pytest.mark.skipif(
        subprocess.run(
            ["unshare", "--map-root-user", "--net", "true"], capture_output=True, check=False
        ).returncode
        != 0,
        reason="needs a network namespace: unshare --map-root-user --net",
    ),
]


def torch_of_the_host(base: Path) -> Path:
    """A user's site that has this environment's torch and Triton, and nothing else."""
    here = Path(sysconfig.get_path("purelib"))
    version = "python{}.{}".format(*sys.version_info)
    site = base / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    for name in ("torch", "torchgen", "functorch", "triton"):
        if (here / name).exists():
            (site / name).symlink_to(here / name)
    for name in ("torch", "triton"):
        (found,) = here.glob(f"{name}-*.dist-info")
        (site / found.name).symlink_to(found)
    return base


def test_setup_from_a_wheelhouse_needs_no_network(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.create("square")
    made = project.run("make", "wheelhouse", "VENV=", f"PYTHON={sys.executable}", "TORCH=no")
    assert "wheelhouse holds" in made.stdout
    assert not list((project.root / "wheelhouse").glob("torch-*"))

    host = {"PYTHONUSERBASE": str(torch_of_the_host(tmp_path / "user"))}
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    alone = ("unshare", "--map-root-user", "--net", "--")
    interfaces = project.run(*alone, "cat", "/proc/net/dev").stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"], "there is a network"
    project.run(*alone, "make", "setup", f"PYTHON={python}", "WHEELHOUSE=wheelhouse", env=host)
    ready = project.run(
        *alone,
        ".venv/bin/python",
        "-m",
        "pipeline.sweep",
        "kernel=square",
        "device=cpu",
        "preset=smoke",
        "provider=torch_square",
        "tracking=none",
        env=host,
    )
    assert "points measured" in ready.stdout
    shutil.rmtree(project.root)
