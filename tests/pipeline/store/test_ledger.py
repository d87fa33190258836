import errno
import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from pipeline.store.ledger import Ledger, read_rows
from pipeline.store.provenance import beside
from pipeline.store.rows import encode
from tests import factory

ROOT = Path(__file__).parents[3]


def silent(text: str) -> None:
    raise AssertionError(f"warned without a reason: {text}")


def test_reads_back_what_was_appended_the_newest_of_each_point(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "ledger.jsonl"
    ledger = Ledger(path, silent)
    assert len(ledger) == 0
    rows = factory.grid()
    random.Random(0).shuffle(rows)
    newer = factory.measurement(median_us=1.0)
    for row in [factory.measurement(median_us=9.0), *rows, newer]:
        ledger.append(row)
    reopened = Ledger(path, silent)
    assert reopened.rows() == ledger.rows()
    assert reopened.get(newer.point, newer.parts.settings) == newer
    assert len(path.read_bytes().splitlines()) == len(rows) + 2, "nothing is rewritten before compact"
    reopened.compact()
    assert read_rows(path, silent) == ledger.rows()
    assert len(path.read_bytes().splitlines()) == len({row.point for row in rows})


def test_a_row_of_the_first_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(factory.measurement().to_json() + b"\n")
    with pytest.raises(UserError, match="has an earlier format, which is no longer read"):
        read_rows(path, silent)


def test_compaction_keeps_what_another_version_wrote_and_drops_what_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    row = factory.measurement()
    newer = encode(row).replace(b'{"key"', b'{"field_of_a_later_version":1,"key"')
    factory.write_provenance(path, [row])
    path.write_bytes(newer + b'{"torn": 1\n' + encode(row))
    said: list[str] = []
    ledger = Ledger(path, said.append)
    assert ledger.rows() == [row]
    for _ in range(2):
        ledger.compact()
        assert path.read_bytes() == encode(row) + newer
    assert len(said) == 2, "the ledger names each line once, when it is opened"


def test_a_row_of_other_settings_stands_beside(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, silent)
    cold, hot = factory.measurement(), factory.measurement(settings="hot", cache="hot", median_us=2.0)
    for row in (cold, hot, factory.measurement(settings="hot", cache="hot", median_us=1.0)):
        ledger.append(row)
    assert len(ledger) == 2
    ledger.compact()
    found = {row.parts.settings: row.outcome.timing for row in read_rows(path, silent)}
    assert {name: timing.median_us for name, timing in found.items() if timing} == {
        cold.parts.settings: cold.outcome.timing and cold.outcome.timing.median_us,
        "hot": 1.0,
    }
    assert ledger.get(cold.point, "warm") is None


APPEND = """
import sys
from pathlib import Path
from pipeline.store.ledger import Ledger
from tests import factory
path, provider, compacting = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "compact"
ledger = Ledger(path, print)
print("ready", flush=True)
sys.stdin.readline()
for size in range(1, 61):
    ledger.append(factory.measurement(provider=provider, size=size))
    if compacting and size % 10 == 0:
        ledger.compact()
"""


@pytest.mark.parametrize("second", ["append", "compact"])
def test_two_processes_with_temporary_folders_of_their_own_lose_no_line(tmp_path: Path, second: str) -> None:
    """Two containers on one host share neither /tmp nor the device's lock in it, but the results folder."""
    path = tmp_path / "ledger.jsonl"
    writers = []
    for provider, way in (("torch", "append"), ("manual", second)):
        (tmp_path / provider).mkdir()
        writers.append(
            subprocess.Popen(
                [sys.executable, "-c", APPEND, str(path), provider, way],
                cwd=ROOT,
                env=os.environ | {"TMPDIR": str(tmp_path / provider)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    assert [writer.communicate("go\n")[0] for writer in writers] == ["", ""]
    assert [writer.returncode for writer in writers] == [0, 0]
    rows = read_rows(path, silent)
    assert len(rows) == 120
    assert {(row.point.provider, row.point.problem["columns"]) for row in rows} == {
        (provider, size) for provider in ("torch", "manual") for size in range(1, 61)
    }


HOLD = """
import sys
from pathlib import Path
from kernel_pipeline.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["append", "compact"])
def test_who_writes_waits_for_who_is_writing(tmp_path: Path, way: str) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, silent)
    ledger.append(factory.measurement(size=2))
    ledger.append(factory.measurement(size=1))
    before = path.read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        write = ledger.compact if way == "compact" else lambda: ledger.append(factory.measurement(size=3))
        writing = Thread(target=write)
        writing.start()
        writing.join(0.2)
        assert path.read_bytes() == before
        holder.stdin.close()
        writing.join()
    assert path.read_bytes() != before


def test_what_was_appended_here_is_written_again_where_the_file_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.jsonl"
    warnings: list[str] = []
    before, mine, last = (factory.measurement(size=size) for size in (1, 2, 3))
    Ledger(path, silent).append(before)
    ledger = Ledger(path, warnings.append)
    ledger.append(mine)
    shutil.rmtree(path.parent)
    ledger.append(last)
    ledger.compact()
    assert ledger.rows() == read_rows(path, silent) == [mine, last]
    assert warnings == [f"1 rows of this run had disappeared from {path}; they are written again."]
    path.unlink()
    ledger.compact()
    assert read_rows(path, silent) == [], "what is gone after the run is gone"


def test_a_newer_row_of_another_process_stays(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, silent)
    ledger.append(factory.measurement(median_us=2.0))
    newer = factory.measurement(median_us=1.0)
    Ledger(path, silent).append(newer)
    ledger.compact()
    assert ledger.rows() == read_rows(path, silent) == [newer]


def cant_be_taken(path: Path, why: int) -> str:
    return re.escape(f"can't write {path}: its lock .{path.name}.lock can't be taken: {os.strerror(why)}. ")


@pytest.mark.parametrize(("planted", "why"), [("link", errno.ELOOP), ("folder", errno.EISDIR)])
def test_a_lock_that_is_no_file_is_a_sentence(tmp_path: Path, planted: str, why: int) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", silent)
    lock = tmp_path / ".ledger.jsonl.lock"
    lock.mkdir() if planted == "folder" else lock.symlink_to(tmp_path / "elsewhere")
    for write in (ledger.compact, lambda: ledger.append(factory.measurement())):
        with pytest.raises(UserError, match=cant_be_taken(ledger.path, why)):
            write()
    assert not (tmp_path / "elsewhere").exists()
    assert not ledger.path.exists()


def test_a_file_system_without_locks_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS answers whose lock daemon does not run."""

    def none(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", none)
    ledger = Ledger(tmp_path / "ledger.jsonl", silent)
    for path, write in (
        (ledger.path, ledger.compact),
        (beside(ledger.path), lambda: ledger.append(factory.measurement())),
    ):
        with pytest.raises(UserError, match=cant_be_taken(path, errno.ENOLCK)):
            write()
    assert not ledger.path.exists()


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """In a folder that everyone may reach: become a user that nothing belongs to."""
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # the folders above it are their owner's alone
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    yield lambda: os.seteuid(65534)
    os.seteuid(0)


def test_a_folder_or_a_lock_of_another_user_is_a_sentence(nobody: Callable[[], None]) -> None:
    read_only, shared = Path("read_only/ledger.jsonl"), Path("shared/ledger.jsonl")
    for path in (read_only, shared):
        Ledger(path, silent).append(factory.measurement())
    read_only.with_name(f".{read_only.name}.lock").unlink()
    shared.parent.chmod(0o777)
    shared.with_name(f".{shared.name}.lock").chmod(0o644)
    nobody()
    for path in (read_only, shared):
        ledger = Ledger(path, silent)
        assert len(ledger) == 1, "to read needs no lock"
        for write in (ledger.compact, lambda: ledger.append(factory.measurement())):  # noqa: B023
            with pytest.raises(UserError, match=cant_be_taken(path, errno.EACCES)):
                write()


def test_a_ledger_that_may_not_be_read_is_a_sentence(nobody: Callable[[], None]) -> None:
    path = Path("ledger.jsonl")
    Ledger(path, silent).append(factory.measurement())
    path.chmod(0o600)
    nobody()
    with pytest.raises(UserError, match=r"can't read ledger\.jsonl: Permission denied\."):
        Ledger(path, silent)


@given(cut=st.integers(min_value=0), data=st.data())
def test_a_file_cut_anywhere_keeps_its_whole_lines_and_takes_new_ones(
    tmp_path_factory: pytest.TempPathFactory, cut: int, data: st.DataObject
) -> None:
    """As a crash leaves it: at any byte."""
    path = tmp_path_factory.mktemp("cut") / "ledger.jsonl"
    rows = factory.grid(providers=("torch",))
    content = b"".join(map(encode, rows))
    kept = content[: cut % (len(content) + 1)]
    factory.write_provenance(path, rows)
    path.write_bytes(kept)
    # A line without its newline is whole, too.
    whole = [row for i, row in enumerate(rows) if kept.startswith(b"".join(map(encode, rows[: i + 1]))[:-1])]
    warnings: list[str] = []
    ledger = Ledger(path, warnings.append)
    assert ledger.rows() == whole
    assert len(warnings) == (len(kept) > len(b"".join(map(encode, whole))))
    new = factory.measurement("softmax", "cuda", data.draw(st.sampled_from([7, 8])))
    ledger.append(new)
    assert {row.point for row in read_rows(path, lambda text: None)} == {row.point for row in [*whole, new]}


@pytest.mark.parametrize("line", [b"null", b"{", b"\xff\xfe", b'{"key": 1}', b"[" * 100_000])
def test_a_foreign_line_is_said_and_skipped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    row = factory.measurement()
    factory.write_provenance(path, [row])
    path.write_bytes(b"\n" + line + b"\n" + encode(row))
    warnings: list[str] = []
    assert read_rows(path, warnings.append) == [row]
    assert warnings == [
        f"{path}:2 is not a measurement (incomplete or edited); skipped, its point counts as new."
    ]


def test_a_full_disk_is_said_with_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, silent)
    ledger.append(factory.measurement(size=1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device\. Earlier measurements are kept"):
        ledger.append(factory.measurement(size=2))
    assert len(ledger) == 1
    with pytest.raises(UserError, match=r"No space left on device\. The file is unchanged"):
        ledger.compact(lambda row: row.with_noise_floor(0.5))


def test_write_atomically_touches_nothing_that_is_right_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one")
    before = path.stat()
    write_atomically(path, b"one")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_ino != before.st_ino, "replaced, not written over: a reader sees one or the other"
    assert list(tmp_path.iterdir()) == [path]


def test_two_that_write_one_file_at_once_leave_it_whole(tmp_path: Path) -> None:
    """With the same process id, as two containers may have on one folder: here they are threads."""
    path = tmp_path / "file"
    contents = [letter * 100_000 for letter in (b"a", b"b")]
    failed: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for turn in range(40):
                write_atomically(path, content + bytes(turn))
                assert len(set(path.read_bytes().strip(b"\0"))) == 1
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def ctrl_c(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, sys
from pathlib import Path
from pipeline.store.ledger import Ledger
from tests import factory
ledger = Ledger(Path(sys.argv[1]), print)
for size in range(1, 41):
    ledger.append(factory.measurement(size=size))
os.kill(os.getpid(), 9)
"""


def test_a_process_that_is_killed_loses_no_row(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(read_rows(path, silent)) == 40
