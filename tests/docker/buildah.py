"""Buildah with a store of its own, and a base image bootstrapped from the distribution's packages."""

import json
import os
import platform
import runpy
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import ROOT
from tests.processes import completed

BASE = "localhost/bootstrapped:base"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PACKAGES = ("ca-certificates", "python3-dev", "python3-venv")
"""What the default base images bring: certificates and a Python that can compile against itself."""


DISK_BYTES = 40e9
"""Where layers can't share files, each is a copy of all below it: both images took 29 GB meanwhile."""


def missing() -> str | None:
    """Why images can't be built here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if platform.freedesktop_os_release().get("ID") != "debian":
        return "bootstraps its base from Debian's packages, on Debian"
    absent = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None]
    if absent:
        return f"needs apt-get install {' '.join(absent)}"
    mounts = ["unshare", "--mount", "--", "mount", "-t", "tmpfs", "none", "/mnt"]
    if subprocess.run(mounts, capture_output=True, check=False).returncode != 0:
        return "needs to mount file systems, which this container's root may not"
    if shutil.disk_usage(tempfile.gettempdir()).free < DISK_BYTES:
        return f"needs {DISK_BYTES / 1e9:.0f} GB in {tempfile.gettempdir()}"
    return None


class Buildah:
    """Buildah over images and containers that end with the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = folder / "storage.conf"
        places = {"graphroot": folder / "images", "runroot": folder / "run"}
        lines = ["[storage]", 'driver = ""', *(f'{name} = "{place}"' for name, place in places.items())]
        settings.write_text("\n".join(lines) + "\n")
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MLFLOW_", "PIPELINE_", "BASE_IMAGE", "BUILD_FLAGS", "RUN_FLAGS"))
        } | {"CONTAINERS_STORAGE_CONF": str(settings), "BUILDAH_ISOLATION": "chroot", "ENGINE": "buildah"}

    def __call__(self, *words: str) -> str:
        """What a command of Buildah's prints; fails with what it says."""
        done = completed(["buildah", *words], env=self.env)
        assert done.returncode == 0, f"buildah {' '.join(words)}:\n{done.stderr[-3000:]}"
        return done.stdout.strip()

    def bootstrap(self) -> None:
        """Make the base image: the smallest system of this machine's release, from where apt gets it here."""
        release = platform.freedesktop_os_release()["VERSION_CODENAME"]
        root = self.folder / "root"
        subprocess.run(
            [
                "debootstrap",
                "--variant=minbase",
                "--components=main,contrib,non-free",  # ncu is not free
                f"--include={','.join(PACKAGES)}",
                release,
                str(root),
                *_mirror(release),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for package in (root / "var/cache/apt/archives").glob("*.deb"):
            package.unlink()
        container = self("from", "scratch")
        self("add", "--quiet", container, str(root), "/")
        self("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(root)

    def docker_run(
        self, project: Path, kind: str, *command: str, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """``docker/run`` in a checkout, on the base image; fails with what it printed."""
        done = completed(
            ["docker/run", kind, *command],
            cwd=project,
            env=self.env | {"BASE_IMAGE": BASE} | dict(env),
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    def image(self, name: str) -> dict[str, Any]:
        """What an image says of itself."""
        return dict(json.loads(self("inspect", "--type", "image", name)))

    def end(self) -> None:
        """Remove all containers and images."""
        self("rm", "--all")
        self("rmi", "--all", "--force")


def _mirror(release: str) -> list[str]:
    """Where apt gets this release from, in case it is not the distribution's own place."""
    targets = completed(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"], check=True
    )
    found = [line.split()[1] for line in targets.stdout.splitlines() if line.split()[0] == release]
    return found[:1]


def certificates() -> list[str]:
    """Flags that let a build trust whom this machine trusts."""
    bundle = Path(os.environ.get("SSL_CERT_FILE", BUNDLE))
    return ["--volume", f"{bundle.resolve()}:{BUNDLE}:ro"] if bundle.is_file() else []


def pip_settings(folder: Path) -> dict[str, str]:
    """Variables that add a company's settings of pip to this machine's: a cap on versions, more to install,
    certificates, a second folder to find links in. No image has the files of the cap and of the list."""
    here = runpy.run_path(str(ROOT / "docker" / "pip_settings.py"))["settings"]()
    (folder / "wheels").mkdir()
    (folder / "constraints.txt").write_text("torch<1\n")
    (folder / "requirements.txt").write_text("of-no-index==1\n")
    lines = ["[global]", f"constraint = {folder}/constraints.txt", f"cert = {here.get('cert', BUNDLE)}"]
    (folder / "pip.conf").write_text(
        "\n".join([*lines, "[install]", f"requirement = {folder}/requirements.txt"]) + "\n"
    )
    return {
        "PIP_CONFIG_FILE": str(folder / "pip.conf"),
        "PIP_FIND_LINKS": f"{folder}/wheels {here.get('find-links', '')}",
    }
