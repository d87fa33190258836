"""Where a commit can't be read git's own reason is said, with a command that helps."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.store import commit
from tests.planted.tree import cpu_tree
from tests.repository import ALONE, git
from tests.repository import commit as committed

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose name a shell would take apart, with a file."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "host dir; $(x)"
    folder.mkdir()
    (folder / "file").touch()
    return folder


def why(root: Path) -> str:
    found = commit.unreadable(root)
    assert found is not None and commit.head(root) == ("unknown", True)
    return found


def follow(root: Path, advice: str) -> None:
    """Run the command that the advice ends with, in a shell."""
    subprocess.run(["sh", "-c", advice], cwd=root.parent, check=True, capture_output=True)


def test_a_commit_that_can_be_read_needs_no_word(root: Path) -> None:
    committed(root)
    assert commit.unreadable(root) is None


def test_outside_of_git_the_command_makes_a_repository_of_it(root: Path) -> None:
    said = why(root)
    assert said.startswith(f"{root} is not in a git repository: measure in a clone, or git -C '")
    follow(root, said.partition("clone, or ")[2])
    assert commit.unreadable(root) is None


def test_a_repository_without_a_commit(root: Path) -> None:
    git(root, "init", "--quiet")
    said = why(root)
    assert said.startswith(f"the repository of {root} has no commit yet: git -C '")
    follow(root, said.partition(": ")[2])
    assert commit.unreadable(root) is None


def test_a_repository_of_another_account(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a checkout is that was mounted into a container; git's words come in the user's language."""
    committed(root)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(root.parent / "gitconfig"))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    said = why(root)
    assert "detected dubious ownership in repository at" in said
    assert ": git config --global --add safe.directory '" in said
    follow(root, said[said.index("git config") :])
    assert commit.unreadable(root) is None


def test_what_git_says_is_passed_on(root: Path) -> None:
    committed(root)
    (root / ".git/config").write_text("[core\n")
    assert why(root).startswith("git says 'bad config line 1 in file .git/config': git -C '")


def test_without_git(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    assert why(root) == "git is not installed: apt-get install git"


@pytest.mark.slow
def test_a_sweep_and_a_comparison_pass_it_on(tmp_path: Path) -> None:
    """A copy that is no clone, as an archive's."""
    tree = cpu_tree(tmp_path, "quick")
    reason = f"{tree.root} is not in a git repository: measure in a clone, or git -C {tree.root} init && "
    point = ("kernel=quick", "provider=mul", "size=64")
    first = tree.sweep(*point)
    assert first.stdout.count(f"Rows don't name the commit that they were measured at: {reason}") == 1
    assert "Rows don't name" not in tree.sweep(*point).stdout, "there are no new ones"
    compared = tree.sweep("kernel=quick", "a=HEAD", command="compare")
    assert compared.returncode == 2
    assert f"error: a=HEAD: no commit of {tree.root} can be read: {reason}" in compared.stderr
