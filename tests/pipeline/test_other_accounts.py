"""A command's defences against the machine's other accounts and against files that others wrote."""

import getpass
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernel_pipeline import files, loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import lock
from kernel_pipeline.ops import native
from kernel_pipeline.toolchain import inductor
from pipeline import results as command
from pipeline.command.options import ResultsConfig
from pipeline.keys import identity
from pipeline.points import catalog, written
from pipeline.store import plain_yaml, results
from pipeline.ui import claimed_port
from tests import factory
from tests.factory import H200

NOBODY = 65534
BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefghijkl", "bcdefghijklm", strict=True)
)
NESTED = "timing: " + "[" * 20_000 + "]" * 20_000

HOLD = """
import fcntl, os, sys
file = open(sys.argv[1])
os.setuid(int(sys.argv[2]))
fcntl.lockf(file, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another account")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock.tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def read_locked(path: Path, account: int) -> Iterator[int]:
    """Start a process of another account that locks a file which it can only read. Yield its process id."""
    command = [sys.executable, "-I", "-S", "-c", HOLD, str(path), str(account)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.stdin.close()


CACHES = [inductor.CACHE, inductor.TRITON_CACHE, *inductor.PACKAGE_CACHES]


@pytest.mark.parametrize("cache", CACHES)
def test_what_is_compiled_lies_in_a_folder_of_this_user_alone(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.delenv(cache, raising=False)
    folder = Path(inductor.variables()[cache])
    assert folder.is_relative_to(temporary) and folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv(cache, "elsewhere")
    assert cache not in inductor.variables(), "the caller's own choice"


@pytest.mark.parametrize(
    "place",
    [
        "kernel-pipeline-{uid}/inductor",
        "kernel-pipeline-{uid}/triton",
        "kernel-pipeline-{uid}/flash-attention",
        "torchinductor_{user}",
    ],
)
@pytest.mark.parametrize("kind", ["link", "for others to write", "another's"])
def test_code_that_another_account_put_there_is_not_run(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    """Torch puts precompiled headers into its own folder, whatever cache folder is set."""
    for cache in CACHES:
        monkeypatch.delenv(cache, raising=False)
    lock.runtime_folder()
    folder = temporary / place.format(uid=os.geteuid(), user=getpass.getuser())
    if kind == "link":
        (temporary / "theirs").mkdir()
        folder.symlink_to(temporary / "theirs")
    else:
        folder.mkdir()
        if kind == "another's":
            if os.geteuid() != 0:
                pytest.skip("needs root, to act as another account")
            os.chown(folder, NOBODY, NOBODY)
        else:
            folder.chmod(0o777)
    with pytest.raises(UserError, match=rf"{folder} is not a folder that you own .* compiled there is run"):
        inductor.variables()


@pytest.mark.parametrize("kind", ["link", "for others to write", "another's"])
def test_an_op_loads_no_library_that_another_account_put_into_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(native.VARIABLE, raising=False)
    monkeypatch.setattr(native, "BUILT", tmp_path / "nothing")
    folder = native.cache()
    if kind == "link":
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir()
        folder.chmod(0o777 if kind == "for others to write" else 0o755)
        if kind == "another's":
            if os.geteuid() != 0:
                pytest.skip("needs root, to act as another account")
            os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(native.NotThereError, match=rf"{folder} is not a folder that you own"):
        native.library(loading.load("vector_add"), "cpp.cpp")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_uis_lock_follows_no_link_and_waits_for_no_pipe(temporary: Path, kind: str) -> None:
    (temporary / "precious").write_text("kept")
    path = lock.runtime_folder() / "ui-5000.lock"
    if kind == "link":
        path.symlink_to(temporary / "precious")
    else:
        os.mkfifo(path)
    with pytest.raises(UserError, match="remove it"), claimed_port():
        pass
    assert (temporary / "precious").read_text() == "kept"


@as_root
def test_a_lock_that_another_account_holds_is_named_and_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WAIT_S", 0.1)
    path, beside = tmp_path / "a.jsonl", tmp_path / ".a.jsonl.lock"
    beside.touch(mode=0o644)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    with (
        read_locked(beside, NOBODY) as holder,
        pytest.raises(UserError, match=rf"process {holder} has held its lock \.a\.jsonl\.lock for 0\.1 s"),
        files.locked(path),
    ):
        pass
    with files.locked(path):
        pass


def test_a_lock_is_made_so_that_no_other_account_can_hold_it(tmp_path: Path) -> None:
    with files.locked(tmp_path / "a.jsonl"):
        assert (tmp_path / ".a.jsonl.lock").stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("text", [BOMB, NESTED], ids=["aliases", "nested"])
def test_yaml_that_is_not_plain_is_skipped_by_merge_and_prune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    told = "timing: {}\nseed: 0\n"
    here = factory.write_results(tmp_path / "here", factory.grid(sizes=(256,)))
    there = factory.write_results(tmp_path / "there", factory.grid(sizes=(256, 1024)))
    for folder in (here, there):
        results.config_path(folder, "softmax", H200).write_text(told + text)
    before = results.config_path(here, "softmax", H200).read_bytes()
    fixed = {"output": here, "kernel": "softmax", "gpu": None, "parts": ["settings"]}
    command.run(ResultsConfig(action="merge", source=there, write=True, **fixed))
    assert "does not hold the settings of a sweep; skipped." in " ".join(capsys.readouterr().out.split())
    assert results.config_path(here, "softmax", H200).read_bytes() == before
    command.run(ResultsConfig(action="prune", source=None, write=False, **fixed))
    assert identity.settings_beside(results.ledger_path(here, "softmax", H200)) is None


@pytest.mark.parametrize(
    ("text", "clause"),
    [(BOMB, r"line 2 has an alias \(\*a\)"), (NESTED, "line 1 is nested more than 20 deep")],
    ids=["aliases", "nested"],
)
def test_a_workloads_file_that_is_not_plain_is_refused_with_its_line(
    tmp_path: Path, text: str, clause: str
) -> None:
    with pytest.raises(ValueError, match=clause):
        plain_yaml.load(text)
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(UserError, match=f"{clause}; write its values out"):
        written.read(tmp_path / "w.yaml", catalog.find("softmax"))
