"""locks/install.py with short locks and small packages in a folder, without a package index."""

import base64
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.processes import completed

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def wheel(folder: Path, name: str, version: str, **files: str) -> Path:
    """Write a wheel with these modules."""
    info = f"{name}-{version}.dist-info"
    contents = {f"{module}.py": text for module, text in files.items()} | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        record = ""
        for inside, text in contents.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            archive.writestr(inside, text)
            record += f"{inside},sha256={digest},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def source(folder: Path, name: str, version: str, script: str) -> Path:
    """Write a source archive that any setuptools can build."""
    contents = {
        "setup.py": script,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}.py": "",
    }
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inside, text in contents.items():
            member = tarfile.TarInfo(f"{name}-{version}/{inside}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def lock_of(lock: Path, *paths: Path) -> None:
    """Write a lock with the current hashes of the files."""
    lines = []
    for path in paths:
        name, version = path.name.removesuffix(".tar.gz").split("-")[:2]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{name}=={version} ; sys_platform == 'linux' \\\n    --hash=sha256:{digest}\n")
    lock.write_text("".join(lines))


class Place:
    """The installer with its own locks, a folder from which pip takes files, and a target folder."""

    def __init__(self, folder: Path) -> None:
        self.locks, self.files, self.target = (folder / name for name in ("locks", "files", "target"))
        self.locks.mkdir()
        self.files.mkdir()
        shutil.copy(ROOT / "locks" / "install.py", self.locks)
        self.lock("build")

    def lock(self, lock: str, *paths: Path) -> None:
        lock_of(self.locks / f"{lock}.lock", *paths)

    def install(self, *words: str) -> subprocess.CompletedProcess[str]:
        # The links have hashes, as those of a package index do.
        page = self.files / "index.html"
        links = [
            f'<a href="{path.name}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}">{path.name}</a>'
            for path in sorted(self.files.iterdir())
            if path != page
        ]
        page.write_text("\n".join(links))
        where = ("--no-index", "--find-links", str(page), "--target", str(self.target))
        return completed(
            [sys.executable, self.locks / "install.py", *words, *where],
            env={"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"},
        )

    def installed(self) -> set[str]:
        return {path.name.removesuffix(".dist-info") for path in self.target.glob("*.dist-info")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_the_lock_names_is_installed_and_a_file_with_another_hash_is_refused(place: Place) -> None:
    good = wheel(place.files, "first", "1.0", first="")
    other = wheel(place.files, "second", "2.0", second="")
    place.lock("runtime", good, other)
    wheel(place.files, "second", "2.0", second="import os  # not what was locked")
    refused = place.install("runtime")
    assert refused.returncode != 0 and "DO NOT MATCH THE HASHES" in refused.stderr
    assert not place.installed(), "nothing of a refused lock is installed"
    place.lock("runtime", good, other)
    done = place.install("runtime")
    assert done.returncode == 0, done.stderr
    assert place.installed() == {"first-1.0", "second-2.0"}
    (place.locks / "runtime.lock").write_text("first==1.0\n")
    refused = place.install("runtime")
    assert refused.returncode != 0 and "Hashes are required" in refused.stderr


@pytest.mark.parametrize("cpu_build", ["served", "absent", "tampered"])
def test_torchs_cpu_build_is_taken_where_it_is_served(place: Place, cpu_build: str) -> None:
    cpu = wheel(place.files, "torch", "9.0+cpu", torch="")
    place.lock("torch-cpu", cpu)
    place.lock(
        "torch-cuda",
        wheel(place.files, "torch", "9.0", torch=""),
        wheel(place.files, "nvidia_x", "1.0", x=""),
    )
    place.lock("runtime", wheel(place.files, "first", "1.0", first=""))
    if cpu_build == "absent":
        cpu.unlink()
    elif cpu_build == "tampered":
        wheel(place.files, "torch", "9.0+cpu", torch="import os  # not what was locked")
    done = place.install("runtime", "torch")
    if cpu_build == "tampered":
        assert done.returncode != 0 and "DO NOT MATCH THE HASHES" in done.stderr
        assert not place.installed(), "another torch in its place would hide what happened"
        return
    assert done.returncode == 0, done.stderr
    torch = {"torch-9.0+cpu"} if cpu_build == "served" else {"torch-9.0", "nvidia_x-1.0"}
    assert place.installed() == {"first-1.0", *torch}


def test_a_source_is_built_by_what_is_installed_and_nothing_is_fetched_to_build_it(place: Place) -> None:
    """The folder has no setuptools, so pip could not fill an isolated build environment."""
    archive = source(
        place.files,
        "built",
        "1.0",
        "from setuptools import setup\nsetup(name='built', version='1.0', py_modules=['built'])\n",
    )
    place.lock("runtime", archive)
    done = place.install("runtime")
    assert done.returncode == 0, done.stderr
    assert place.installed() == {"built-1.0"}
