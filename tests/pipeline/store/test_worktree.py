"""Another commit's files are gone however the process that looked at them ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from pipeline.store.worktree import worktree
from tests.project import wait_until
from tests.repository import commit, git

LOOKS = """
import signal, sys, time
from pathlib import Path
from pipeline.store.worktree import worktree
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background job ignores it
with worktree(Path(sys.argv[1]), "HEAD") as tree:
    print((tree / "file").read_text(), flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    (root / "file").write_text("committed")
    commit(root)
    (root / "file").write_text("edited")
    return root


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def worktrees(root: Path) -> int:
    return len(git(root, "worktree", "list").splitlines())


def test_it_holds_what_was_committed_and_leaves_nothing(repository: Path, temporary: Path) -> None:
    with worktree(repository, "HEAD") as tree:
        assert (tree / "file").read_text() == "committed"
        assert worktrees(repository) == 2
    assert worktrees(repository) == 1
    assert list(temporary.iterdir()) == []


def test_a_failure_leaves_nothing(repository: Path, temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError), worktree(repository, "HEAD"):
        raise ZeroDivisionError
    with (
        pytest.raises(UserError, match="commit nothing can't be checked out: fatal: "),
        worktree(repository, "nothing"),
    ):
        pass
    assert worktrees(repository) == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'warning: it is slow' >&2; echo 'fatal: it is broken' >&2", "fatal: it is broken"),
        ("", "git says nothing"),
    ],
)
def test_the_last_line_of_git_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    fake = tmp_path / "git"
    fake.write_text(f"#!/bin/sh\n{script}\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with (
        pytest.raises(UserError, match=rf"commit 0123456789ab can't be checked out: {said}\."),
        worktree(tmp_path, "0123456789abcdef"),
    ):
        pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_is_gone_after_a_process_that_is_killed(
    repository: Path, temporary: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOOKS, str(repository)],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "committed\n"
    assert worktrees(repository) == 2
    os.killpg(process.pid, number)
    process.communicate()
    wait_until(lambda: worktrees(repository) == 1)
    wait_until(lambda: not list(temporary.iterdir()))
