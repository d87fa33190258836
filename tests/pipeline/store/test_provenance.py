"""What the rows of a run share stands once, before them, and is never lost."""

import errno
import os
from pathlib import Path

import pytest

from kernel_pipeline import files
from kernel_pipeline.errors import UserError
from pipeline.store import ledger, provenance
from pipeline.store.ledger import Ledger
from pipeline.store.provenance import hashed, run_of
from tests import factory

ROW = factory.measurement()
RUN = run_of(ROW.origin, ROW.parts, "softmax")


def test_a_runs_line_is_there_before_its_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "timings" / "softmax" / f"{factory.H200}.jsonl"
    order: list[Path] = []
    append = files.append

    def noted(place: Path, line: bytes) -> None:
        order.append(place)
        append(place, line)

    monkeypatch.setattr(files, "append", noted)
    Ledger(path, pytest.fail).append(ROW)
    assert order == [tmp_path / "provenance" / f"{factory.H200}.jsonl", path]


def test_a_full_disk_at_a_runs_line_leaves_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    opened = Ledger(path, pytest.fail)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        opened.append(ROW)
    assert not path.exists()


def test_a_row_without_its_runs_line_is_a_sentence_and_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path, pytest.fail).append(ROW)
    line = path.read_bytes()
    place = provenance.beside(path)
    kept = place.read_bytes()
    place.write_bytes(b'{"run": "torn')
    said: list[str] = []
    assert ledger.read_rows(path, said.append) == []
    assert said == [
        f"{path}: 1 row names run {ROW.origin.run}, which has no line in {place}; skipped. Copy that line "
        "from the host of the run, or measure the points again."
    ]
    Ledger(path, said.append).compact()
    assert path.read_bytes() == line
    place.write_bytes(kept)
    assert ledger.read_rows(path, pytest.fail) == [ROW]


def test_the_last_line_of_a_run_counts_and_lines_of_no_row_go(tmp_path: Path) -> None:
    place = tmp_path / "runs.jsonl"
    newer = RUN.replace(devices={"cuda:0": hashed("GPU-1")})
    other = RUN.replace(run="other")
    place.write_bytes(RUN.line() + other.line() + newer.line())
    assert provenance.read(place) == {RUN.run: newer, "other": other}
    assert provenance.prune(place, lambda: {RUN.run}) == 1
    assert provenance.read(place) == {RUN.run: newer}


def test_a_gpu_is_known_again_and_its_uuid_is_not_told() -> None:
    assert hashed("GPU-1") == hashed("GPU-1") != hashed("GPU-2")
    assert "GPU-1" not in str(hashed("GPU-1"))
    assert hashed(None) is None


def test_another_clones_runs_are_added_and_ours_stay() -> None:
    known = RUN.replace(environment=factory.environment(factory.H200))
    assert provenance.merged({RUN.run: RUN}, {RUN.run: known})[RUN.run] == known
    assert provenance.merged({RUN.run: known}, {RUN.run: RUN})[RUN.run] == known
