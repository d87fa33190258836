"""Results of the format before this one become today's, and nothing that was timed is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import ROOT, UserError
from pipeline.points.frozen import digest
from pipeline.store import ledger, provenance, results
from pipeline.store.record import Measurement
from tests import factory

RUN = "20261121T120000Z-abcdef"


def earlier(row: Measurement, run: str = RUN) -> dict[str, Any]:
    """A row as the earlier format had it."""
    made: dict[str, Any] = row.model_dump(mode="json")
    made["parts"]["instrument"] = "6" * 16
    del made["parts"]["measurement"]
    made["key"] = digest(made["parts"])
    made["origin"] |= {"run": run, "carried": []}
    return made


ROWS = [factory.measurement(size=size) for size in (256, 1024)] + [factory.measurement(status="timeout")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    factory.write_results(tmp_path, ROWS)
    path = results.ledger_path(tmp_path, "softmax", factory.H200)
    path.write_text("".join(json.dumps(earlier(row)) + "\n" for row in ROWS))
    provenance.beside(path).unlink()
    return tmp_path


def migrate(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.migrate", f"input={folder}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_every_row_is_kept_and_what_its_run_shares_stands_once(folder: Path) -> None:
    path = results.ledger_path(folder, "softmax", factory.H200)
    with pytest.raises(UserError, match=rf"{path} .*run python -m pipeline.migrate input={folder}\."):
        ledger.read_rows(path, pytest.fail)
    was = path.read_bytes()
    assert "3 rows of 1 runs migrated" in migrate(folder)
    found = ledger.read_rows(path, pytest.fail)
    assert [row.outcome.status for row in found] == [row.outcome.status for row in ROWS]
    for one, other in zip(found, ROWS, strict=True):
        now, was_ = one.outcome.timing, other.outcome.timing
        if now is not None and was_ is not None:
            assert (now.median_us, now.n_samples) == (was_.median_us, was_.n_samples)
            assert now.samples_us == pytest.approx(was_.samples_us, rel=6e-5)
    assert [row.point for row in found] == [row.point for row in ROWS]
    assert {row.parts.measurement for row in found} == {"0"}
    assert [row.parts.environment for row in found] == [row.parts.environment for row in ROWS]
    (run,) = provenance.read(provenance.beside(path)).values()
    assert run.environment == provenance.keyed(factory.environment(factory.H200)), "its digests are the rows'"
    assert len(path.read_bytes()) < 0.6 * len(was)
    migrated = path.read_bytes()
    assert "no rows of an earlier format" in migrate(folder)
    assert path.read_bytes() == migrated


@pytest.mark.slow
def test_an_edited_row_stays_as_it_is_with_a_sentence(folder: Path) -> None:
    path = results.ledger_path(folder, "softmax", factory.H200)
    lines = path.read_text().splitlines()
    lines[0] = lines[0].replace('"settings": "', '"settings": "f')
    path.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.migrate", f"input={folder}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        "is of neither format and stays as it is: the key is not that of the parts"
        in done.stdout + done.stderr
    )
    assert lines[0] in path.read_text()
