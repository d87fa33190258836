"""Problems that differ in more than their size are measured by the real command and kept apart by its
readers."""

import json
import sys
from pathlib import Path

import pytest

from pipeline import profile
from pipeline.command.options import ProfileConfig
from pipeline.command.run import run_each
from tests.planted.tree import cpu_tree


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_measures_the_rows_that_were_asked_for_and_resumes(tmp_path: Path) -> None:
    tree = cpu_tree(tmp_path)
    asked = ("kernel=softmax", "provider=[torch,triton_row]", "size=[37,64]", "timing.cache=hot")
    said = tree.run(*asked, "rows=[3,5]")
    assert "8 points measured" in said
    found = {
        (row.point.provider, row.point.problem["columns"], row.point.problem["rows"]): row
        for row in tree.rows("softmax")
    }
    assert set(found) == {
        (name, size, rows) for name in ("torch", "triton_row") for size in (37, 64) for rows in (3, 5)
    }
    for (provider, size, rows), row in found.items():
        assert row.outcome.status == ("ok" if provider == "torch" else "verified"), "interpreted here"
        assert row.rate is None or row.rate.bytes == 2 * 4 * rows * size
    assert "rows=3 columns=37" in said and "rows=5 columns=64" in said

    own = tree.sweep(*asked, "rows=4096")
    assert "4 points measured" in own.stdout
    assert "rows=" not in own.stdout.partition("points measured")[0], "the usual number is nothing to name"
    assert "Nothing to measure" in tree.sweep(*asked).stdout
    points = {(row.point.problem["rows"], row.point.problem["columns"]) for row in tree.rows("softmax")}
    assert points == {(rows, size) for rows in (3, 5, 4096) for size in (37, 64)}
    interpreted = [
        row.outcome.interpreted for row in tree.rows("softmax") if row.outcome.status == "verified"
    ]
    small = [problem["rows"] for problem in interpreted if problem is not None]
    assert small == [8, 8], "of 4096 rows an interpreter is given a few"


@pytest.mark.slow
def test_profiles_are_filed_by_their_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    places = [f"output={tmp_path}/results", f"artifacts={tmp_path}/artifacts"]
    options = ["kernel=softmax", "preset=smoke", "device=cpu", "provider=torch", "size=64", "rows=[3,5]"]
    monkeypatch.setattr(sys, "argv", ["profile", *options, *places])
    with pytest.raises(SystemExit) as ended:
        run_each("profile", ProfileConfig, profile.run)
    assert ended.value.code == 0
    (path,) = tmp_path.glob("results/profile/softmax/*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["point"]["problem"]["rows"] for row in rows] == [3, 5]
    assert len({row["table"] for row in rows}) == 2
    assert all((tmp_path / "artifacts" / row["table"]).is_file() for row in rows)
    assert "rows=3 columns=64" in capfd.readouterr().out
