"""Rows other than a kernel's own: measured by the real command, and kept apart wherever they are read."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from kernels.point import Point
from pipeline import profile, report
from pipeline.config import ProfileConfig, ReportConfig, run_stage
from pipeline.measure import choice, results
from pipeline.measure.ledger import Ledger
from tests.factory import H200, grid, measurement, write_results
from tests.mlflow_store import content, log, shown
from tests.pipeline.test_field import tables
from tests.planted.tree import Tree, cpu_tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return cpu_tree(tmp_path)


def test_a_sweep_measures_the_rows_that_were_asked_for_and_resumes(tree: Tree) -> None:
    asked = ("kernel=softmax", "provider=[torch,triton_row]", "size=[37,64]", "timing.cache=hot")
    done = tree.sweep(*asked, "rows=[3,5]")
    assert (done.returncode, done.stderr) == (0, "")
    assert "8 points measured" in done.stdout
    found = {
        (row.point.provider, row.point.size, row.point.rows): row.outcome for row in tree.rows("softmax")
    }
    assert set(found) == {
        (name, size, rows) for name in ("torch", "triton_row") for size in (37, 64) for rows in (3, 5)
    }
    for (provider, size, rows), outcome in found.items():
        assert outcome.shape == (rows, size)
        assert outcome.status == ("ok" if provider == "torch" else "verified"), "without a GPU, interpreted"
    lines = [json.loads(line) for line in tree.ledger("softmax").read_text().splitlines()]
    assert [line["rows"] for line in lines] == [3, 5] * 4
    assert all(
        line["bytes"] == 2 * 4 * line["rows"] * line["size"] for line in lines if line["status"] == "ok"
    )
    assert {"3x37", "5x64"} <= set(done.stdout.split()), "the table names the shapes"

    before = tree.ledger("softmax").read_bytes()
    again = tree.sweep(*asked, "rows=[5,3]")
    assert again.returncode == 0
    assert "Nothing to measure" in again.stdout
    assert tree.ledger("softmax").read_bytes() == before

    own = tree.sweep(*asked, "rows=4096")
    assert "4 points measured" in own.stdout
    assert {"37", "64"} <= set(own.stdout.split()), "the kernel's own number of rows is nothing to name"
    assert [line for line in tree.ledger("softmax").read_text().splitlines() if '"rows"' not in line]
    assert "Nothing to measure" in tree.sweep(*asked).stdout
    points = {(row.point.provider, row.point.extent) for row in tree.rows("softmax")}
    extents = ("37", "3x37", "5x37", "64", "3x64", "5x64")
    assert points == {(name, extent) for name in ("torch", "triton_row") for extent in extents}


def test_profiles_are_filed_by_their_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    places = [f"output={tmp_path}/results", f"artifacts={tmp_path}/artifacts"]
    options = ["kernel=softmax", "preset=smoke", "device=cpu", "provider=torch", "size=64", "rows=[3,5]"]
    monkeypatch.setattr(sys, "argv", ["profile", *options, *places])
    with pytest.raises(SystemExit) as ended:
        run_stage("profile", ProfileConfig, profile.run)
    assert ended.value.code == 0
    (path,) = tmp_path.glob("results/profile/softmax/*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["rows"], row["shape"]) for row in rows] == [(3, [3, 64]), (5, [5, 64])]
    assert [Path(row["table"]).name for row in rows] == [f"torch-float32-{n}x64.txt" for n in (3, 5)]
    assert all((tmp_path / "artifacts" / row["table"]).is_file() for row in rows)
    assert "torch-float32 3x64: a call is" in capfd.readouterr().out


MIXED = [
    *grid(providers=("torch", "cuda", "triton_row"), sizes=(1024, 4096)),
    measurement(provider="torch", size=1024, rows=37, median_us=6.0),
    measurement(provider="cuda", size=1024, rows=37, block_size=512, num_warps=4, median_us=2.0),
    measurement(provider="cuda", size=1024, rows=37, block_size=1024, num_warps=8, median_us=3.0),
    measurement(provider="cuda", size=1024, rows=1, block_size=512, num_warps=4, median_us=1.0),
]


def test_a_report_has_a_line_for_each_shape_and_plots_the_kernels_own(tmp_path: Path) -> None:
    plain = [row for row in MIXED if row.point.rows is None]
    for name, measurements in (("plain", plain), ("mixed", MIXED)):
        folder = write_results(tmp_path / name / "results", measurements)
        report.run(ReportConfig(input=folder, output=tmp_path / name / "reports", device="cpu"))
    old, new = (tmp_path / name / "reports" for name in ("plain", "mixed"))
    for name in ("plots/softmax.csv", "plots/softmax.svg", "roofline/softmax.svg"):
        assert (new / name).read_bytes() == (old / name).read_bytes(), name

    (best,) = (
        lines
        for text, lines in _tables((new / "report.md").read_text())
        if text.startswith("| columns | machine")
    )
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in best]
    by_extent = {cell[0]: (cell[2], cell[6]) for cell in cells}
    assert list(by_extent) == ["1024", "1x1024", "37x1024", "4096"]
    assert by_extent["37x1024"] == ("cuda 512x4w", "3.00")
    assert by_extent["1x1024"] == ("cuda 512x4w", ""), "no baseline was timed there"
    with (new / "best.csv").open() as file:
        lines = [(line["size"], line["rows"], line["median_us"]) for line in csv.DictReader(file)]
    assert [line[:2] for line in lines] == [("1024", ""), ("1024", "1"), ("1024", "37"), ("4096", "")]
    assert lines[2] == ("1024", "37", "2")

    ((_, shapes),) = tables((new / "field.md").read_text()).values()
    assert [line[1] for line in shapes[1:]] == ["37x1024", "4096x1024", "4096x4096"]
    metrics = [json.loads((folder / "metrics.json").read_text())["softmax"][H200] for folder in (old, new)]
    assert metrics[0]["float32"] == metrics[1]["float32"], "means over the sizes at the kernel's own rows"
    assert metrics[1]["points"]["ok"] == metrics[0]["points"]["ok"] + 4


def test_a_report_of_nothing_but_rows_has_tables_and_no_plot(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", [row for row in MIXED if row.point.rows is not None])
    report.run(ReportConfig(input=folder, output=tmp_path / "reports", device="cpu"))
    for name in ("report.md", "report.html"):
        text = (tmp_path / "reports" / name).read_text()
        assert "37x1024" in text
        assert "No point of it was timed" not in text
    assert not (tmp_path / "reports" / "plots").exists()


def _tables(markdown: str) -> list[tuple[str, list[str]]]:
    """The tables of a page: the heading's line and the lines of cells."""
    found = []
    for block in markdown.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        if lines:
            found.append((lines[0], lines[2:]))
    return found


def test_runs_are_apart_and_those_without_rows_stay_as_they_were(tmp_path: Path) -> None:
    database = tmp_path / "store" / "mlflow.db"
    uri = f"sqlite:///{database}"
    plain = [row for row in MIXED if row.point.rows is None]
    log(write_results(tmp_path / "results", plain), uri)
    before = shown(database)
    log(write_results(tmp_path / "results", MIXED), uri)
    after = shown(database)
    assert set(after) - set(before) == {
        f"torch float32 37 rows @ {H200}",
        f"cuda float32 512x4w 37 rows @ {H200}",
        f"cuda float32 1024x8w 37 rows @ {H200}",
        f"cuda float32 512x4w 1 row @ {H200}",
    }
    parent = f"softmax @ {H200}"
    assert {name: run for name, run in after.items() if name in before and name != parent} == {
        name: run for name, run in before.items() if name != parent
    }
    run = after[f"cuda float32 512x4w 37 rows @ {H200}"]
    assert (run["params"]["rows"], run["params"]["block_size"]) == ("37", "512")
    assert [metric[1:3] for metric in run["metrics"] if metric[0] == "median_us"] == [(1024, 2.0)]
    assert "rows" not in after[f"cuda float32 512x4w @ {H200}"]["params"]
    rates = [[m[:3] for m in runs[parent]["metrics"] if "gbps" in m[0]] for runs in (before, after)]
    assert rates[0] == rates[1], "the best at each size is at the kernel's own rows"

    stored = content(database)
    log(tmp_path / "results", uri)
    assert content(database) == stored, "publishing again changes nothing"


def test_the_points_to_look_into_are_chosen_for_each_shape(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", MIXED)
    rows = Ledger(results.ledger_path(folder, "softmax", H200), print).rows()
    timed = {row.point: row for row in rows}
    chosen = choice.each_provider(list(timed), timed)
    best = {(one.point.provider, one.point.extent): one.point for one in chosen}
    assert len(best) == len(chosen) == 9
    assert best["cuda", "37x1024"] == Point("softmax", "cuda", 1024, "float32", 512, 4, rows=37)
    roles = choice.best_default_baseline(list(timed), timed, "torch", lambda name: name == "cuda")
    at = [(one.point.provider, one.role) for one in roles if one.point.rows == 37]
    assert at == [("cuda", "best, default"), ("torch", "baseline")]
