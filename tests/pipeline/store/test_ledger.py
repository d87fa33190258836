from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.measure.ledger import Ledger, encode, read_rows, write_atomically
from tests import factory


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
    assert reopened.get(newer.point) == newer
    assert len(path.read_bytes().splitlines()) == len(rows) + 2, "nothing is rewritten before compact"
    reopened.compact()
    assert read_rows(path, silent) == ledger.rows()
    assert len(path.read_bytes().splitlines()) == len({row.point for row in rows})


def test_compact_keeps_what_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, silent)
    for row in factory.grid(sizes=(256, 512)):
        ledger.append(row)
    ledger.compact(lambda row: row.point.size == 512)
    assert {row.point.size for row in read_rows(path, silent)} == {512}
    assert {row.point.size for row in ledger.rows()} == {512}


@given(cut=st.integers(min_value=0), data=st.data())
def test_a_file_cut_anywhere_keeps_its_whole_lines_and_takes_new_ones(
    tmp_path_factory: pytest.TempPathFactory, cut: int, data: st.DataObject
) -> None:
    """As a crash leaves it: at any byte."""
    path = tmp_path_factory.mktemp("cut") / "ledger.jsonl"
    rows = factory.grid(providers=("torch",))
    content = b"".join(map(encode, rows))
    kept = content[: cut % (len(content) + 1)]
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


@pytest.mark.parametrize(
    "line", [b"null", b"[]", b'"text"', b"7", b"{", b"{}", b"\xff\xfe", b"\x00", b'{"key": 1}', b"NaN"]
)
def test_a_foreign_line_is_said_and_skipped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    row = factory.measurement()
    path.write_bytes(b"\n" + line + b"\n" + encode(row))
    warnings: list[str] = []
    assert read_rows(path, warnings.append) == [row]
    assert warnings == [f"{path}:2 is not a measurement (torn or edited); skipped, its point counts as new."]


def test_a_folder_that_is_a_file_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    ledger = Ledger(tmp_path / "results" / "ledger.jsonl", silent)
    with pytest.raises(UserError, match=r"can't write .*ledger\.jsonl: .*What was measured before is kept"):
        ledger.append(factory.measurement())
    assert len(ledger) == 0, "a row that is not on the disk is not held either"
    with pytest.raises(UserError, match="The file is as it was"):
        ledger.compact()


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
