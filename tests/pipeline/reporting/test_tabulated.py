"""A table of ledgers, read in parts by processes, has what records of them have."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from pipeline.reporting import reading
from pipeline.reporting.frames import comparable, frame
from pipeline.reporting.reading import RecordFilter
from pipeline.reporting.tabulated import Tabulated, tabulated
from pipeline.store import results
from pipeline.store.record import Measurement
from pipeline.store.rows import encode
from tests import factory


def rows() -> list[Measurement]:
    """Rows of two kernels on three machines, some by other settings, some measured again, some failed."""
    made = factory.grid(
        kernels=("softmax", "square", "gone"),
        gpus=(factory.H200, factory.H100, factory.CPU),
        dtypes=("float32", "bfloat16"),
    )
    later = factory.MEASURED_AT + timedelta(hours=1)
    early = factory.MEASURED_AT - timedelta(hours=1)
    for at, settings, cache in (
        (later, "8" * 16, "cold"),
        (early, "9" * 16, "cold"),
        (later, "a" * 16, "hot"),
    ):
        made.append(factory.measurement(size=1024, settings=settings, cache=cache, measured_at=at))
    made.append(factory.measurement(size=64, status="runtime_error"))
    made.append(factory.measurement(size=65, status="verified", dirty=True))
    made.append(factory.measurement(size=66, valid=False, source="c" * 16))
    made.append(factory.measurement(size=4096, source="d" * 16))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = rows()
    random.Random(0).shuffle(made)
    written = factory.write_results(tmp_path / "results", made)
    path = results.ledger_path(written, "softmax", factory.H200)
    lines = path.read_bytes().splitlines()
    twice = factory.measurement(size=256, median_us=7.0)
    foreign = factory.measurement(size=256, gpu=factory.H100, run="20261121T120000Z-0f0f0f")
    lines[3:3] = [b'{"torn', b"", encode(foreign).strip()]
    factory.write_provenance(path, [twice, foreign])
    path.write_bytes(b"\n".join([*lines, encode(twice).strip(), b"[]"]))
    return written


def both(folder: Path, wanted: RecordFilter) -> tuple[pd.DataFrame, Tabulated, list[str], list[str]]:
    said: list[str] = []
    also_said: list[str] = []
    loaded = results.load(folder, said.append)
    table = tabulated(results.ledgers(folder, pytest.fail), wanted, also_said.append)
    return frame(comparable(loaded.measurements)), table, said, also_said


@pytest.mark.parametrize("part", [1 << 24, 4000])
def test_it_has_the_rows_that_records_have(folder: Path, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PART", part)
    expected, table, said, also_said = both(folder, RecordFilter())
    shown = [name for name in table.rows.columns if name in expected.columns]
    assert {"key", "x", "rank", "median_us", "bytes", "stale"} - {"stale"} <= set(shown)
    found = table.rows[shown]
    pd.testing.assert_frame_equal(
        found.astype(object).where(found.notna(), None),
        expected[shown].astype(object).where(expected[shown].notna(), None),
        check_dtype=False,
    )
    assert also_said == said and len(said) == 3, "the same lines are left out, by the same words"
    assert table.count == len(results.load(folder, lambda sentence: None).measurements)
    environments = [table.examples[origin].parts.environment for origin in table.rows["origin"]]
    assert environments == list(table.rows["environment"])


def test_records_that_are_asked_for_come_along(folder: Path) -> None:
    one, other = rows()[0], rows()[5]
    wanted = RecordFilter(frozenset([one.point]), frozenset([other.key]))
    _, table, _, _ = both(folder, wanted)
    assert {row.point for row in table.wanted} == {one.point, other.point}
    assert {row.origin.gpu for row in table.wanted if row.point == one.point} == {
        factory.H200,
        factory.H100,
        factory.CPU,
    }


def test_of_nothing_there_is_an_empty_table(tmp_path: Path) -> None:
    table = tabulated([], RecordFilter(), pytest.fail)
    assert (len(table.rows), table.count) == (0, 0)
    assert "median_us" in table.rows.columns
    empty = results.ledger_path(tmp_path, "softmax", factory.H200)
    empty.parent.mkdir(parents=True)
    empty.write_bytes(b"")
    assert len(tabulated([empty], RecordFilter(), pytest.fail).rows) == 0
