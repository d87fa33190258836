"""DVC's lock file stays as git has it where a run measured nothing that git keeps."""

import shutil
from pathlib import Path

import pytest

from pipeline.store import dvc_lock
from tests.repository import commit, git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a lock file and results, all of it committed."""
    local = tmp_path / "local"
    for name, value in {"ROOT": tmp_path, "LOCK": tmp_path / "dvc.lock", "OWN": local / "dvc.lock"}.items():
        monkeypatch.setattr(dvc_lock, name, value)
    monkeypatch.setattr(dvc_lock, "COMMITTED", local / "dvc.lock.committed")
    (tmp_path / "dvc.lock").write_text("of git\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/rows").write_text("one\n")
    (tmp_path / ".gitignore").write_text("/local/\n")
    commit(tmp_path)
    return tmp_path


def run(root: Path, expected: str, written: str) -> None:
    """A run of DVC that finds and writes this."""
    with dvc_lock.kept():
        assert (root / "dvc.lock").read_text() == expected
        (root / "dvc.lock").write_text(written)


def test_a_run_that_measured_nothing_leaves_gits_and_the_next_goes_on_from_its_own(root: Path) -> None:
    run(root, "of git\n", "of this machine\n")
    assert git(root, "status", "--porcelain") == ""
    assert (root / "dvc.lock").read_text() == "of git\n"
    run(root, "of this machine\n", "of this machine, later\n")
    run(root, "of this machine, later\n", "of this machine, later\n")
    assert git(root, "status", "--porcelain") == ""


def test_what_gave_rows_for_git_is_left_to_be_committed_with_them(root: Path) -> None:
    run(root, "of git\n", "of this machine\n")
    with dvc_lock.kept():
        (root / "results/rows").write_text("one\ntwo\n")
        (root / "dvc.lock").write_text("with two rows\n")
    assert git(root, "status", "--porcelain").split() == ["M", "dvc.lock", "M", "results/rows"]
    assert (root / "dvc.lock").read_text() == "with two rows\n"
    commit(root)
    run(root, "with two rows\n", "with two rows\n")


def test_an_edit_that_is_not_committed_is_left_alone(root: Path) -> None:
    (root / "dvc.lock").write_text("edited\n")
    run(root, "edited\n", "edited and run\n")
    assert (root / "dvc.lock").read_text() == "edited and run\n"
    assert not (root / "local").exists()


def test_a_run_that_raises_puts_gits_back(root: Path) -> None:
    with pytest.raises(KeyboardInterrupt), dvc_lock.kept():
        (root / "dvc.lock").write_text("half of it\n")
        raise KeyboardInterrupt
    assert git(root, "status", "--porcelain") == ""
    run(root, "half of it\n", "all of it\n")


def test_what_a_killed_run_left_is_put_right_by_the_next(root: Path) -> None:
    killed = dvc_lock.kept()
    killed.__enter__()
    (root / "dvc.lock").write_text("half of it\n")
    run(root, "half of it\n", "all of it\n")
    assert git(root, "status", "--porcelain") == ""
    assert (root / "dvc.lock").read_text() == "of git\n"


def test_a_checkout_without_a_lock_file_has_none_afterwards(root: Path) -> None:
    git(root, "rm", "--quiet", "dvc.lock")
    commit(root)
    with dvc_lock.kept():
        (root / "dvc.lock").write_text("of this machine\n")
    assert git(root, "status", "--porcelain") == ""
    assert not (root / "dvc.lock").exists()
    run(root, "of this machine\n", "of this machine\n")
