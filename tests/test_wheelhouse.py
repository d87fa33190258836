import os
import re
from pathlib import Path

import pytest

from locks import wheelhouse
from locks.wheelhouse import DownloadError, NotInIndexError, gather, pins
from tests.test_locks import lock_of, wheel

LOCKS = Path(__file__).parents[1] / "locks"

LOCK = r"""old==1.0 ; python_full_version < '3.12' and sys_platform == 'linux' \
    --hash=sha256:aa \
    --hash=sha256:bb
old==2.0 ; python_full_version >= '3.12' and sys_platform == 'linux' \
    --hash=sha256:cc
elsewhere==1.0 ; sys_platform == 'win32' \
    --hash=sha256:dd
"""


def test_the_pins_are_those_of_the_hosts_python_with_their_hashes() -> None:
    assert pins(LOCK, "3.11") == {"old==1.0": "old==1.0 --hash=sha256:aa --hash=sha256:bb"}
    assert pins(LOCK, "3.12") == {"old==2.0": "old==2.0 --hash=sha256:cc"}


def test_no_pin_is_for_some_releases_of_one_python_alone() -> None:
    """A wheelhouse is gathered for a Python version such as 3.11, and a host may have any patch release of
    it."""
    for lock in sorted((LOCKS).glob("*.lock")):
        patch = re.findall(r"^.*python_full_version\D+\d+\.\d+\.\d.*$", lock.read_text(), re.MULTILINE)
        assert not patch, f"{lock.name}: {patch}; hold the package back in pyproject.toml's tool.uv"


@pytest.mark.parametrize("python", wheelhouse.VERSIONS)
def test_no_package_of_the_locks_is_wanted_twice(python: str) -> None:
    found = {}
    for name in ("runtime", "dev", "torch-cuda"):
        found |= pins((LOCKS / f"{name}.lock").read_text(), python)
    names = [pin.partition("==")[0] for pin in found]
    assert len(names) == len(set(names)) > 150
    assert {"torch", "setuptools", "nvidia-cublas"} <= set(names)


@pytest.mark.slow
def test_a_file_is_taken_by_its_hash_and_what_no_lock_names_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, locks, folder = (tmp_path / name for name in ("served", "locks", "wheelhouse"))
    for path in (served, locks, folder):
        path.mkdir()
    monkeypatch.setattr(wheelhouse, "LOCKS", locks)
    # The host's own pip settings may restrict versions.
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(served))
    good = wheel(served, "first", "1.0", first="")
    lock_of(locks / "runtime.lock", good)
    for name in ("dev", "nvcc", "numba"):
        lock_of(locks / f"{name}.lock")
    lock_of(locks / "torch-cpu.lock", wheel(tmp_path, "torch", "9.0+cpu", torch=""))
    lock_of(locks / "torch-cuda.lock", wheel(served, "torch", "9.0", torch=""))
    wheel(folder, "first", "0.9", first="")
    (folder / "notes.txt").write_text("somebody's")

    assert gather(folder, "3.12", with_torch=True) == 2
    there = {path.name for path in folder.iterdir()}
    assert there == {"notes.txt", good.name, "torch-9.0-py3-none-any.whl"}

    good.unlink()
    (folder / good.name).unlink()
    with pytest.raises(NotInIndexError, match=r"has first==1\.0"):
        gather(folder, "3.12", with_torch=False)
    wheel(served, "first", "1.0", first="import os  # not what was locked")
    with pytest.raises(DownloadError, match=r"first==1\.0 is not the file that the lock names"):
        gather(folder, "3.12", with_torch=False)
