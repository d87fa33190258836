"""Which modules from elsewhere are somebody's own files, and which are installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.points import opened


@pytest.fixture(autouse=True)
def looked_up_anew() -> Iterator[None]:
    caches = (opened.installed, opened._found)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


def test_a_package_is_installed_beside_its_metadata_though_it_is_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a folder of ``pip install --target`` on PYTHONPATH is, and a user's site with links into another."""
    (tmp_path / "there/linked").mkdir(parents=True)
    (tmp_path / "there/linked/__init__.py").touch()
    site = tmp_path / "site"
    (site / "linked-1.dist-info").mkdir(parents=True)
    (site / "linked").symlink_to(tmp_path / "there/linked")
    own = tmp_path / "own"
    own.mkdir()
    (own / "helper.py").touch()
    monkeypatch.setattr("sys.path", [str(site), str(own)])
    found = opened.elsewhere({"linked", "helper", "json", "of_nobody"}, tmp_path / "kernel")
    assert found == {"helper": own / "helper"}
