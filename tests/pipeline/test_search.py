"""Searches by the real command: the measured configurations, and what a repeated command does."""

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from kernel_pipeline.records.measurement import Measurement
from tests.planted.tree import Tree, cpu_tree

SEARCH = ("kernel=tuned", "size=64", "search=tpe")

# The tests share one slow measurement.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("search")]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, str]:
    """Return a tree with a finished search of 12 trials, and the printed text."""
    tree = cpu_tree(tmp_path_factory.mktemp("first"), "tuned")
    return tree, tree.run(*SEARCH, "trials=12")


@pytest.fixture
def searched(tmp_path: Path, first: tuple[Tree, str]) -> Tree:
    """Return a test's own copy of that tree."""
    return first[0].copy(tmp_path)


def trials(tree: Tree) -> list[Measurement]:
    """Return the ledger's rows of the provider with a grid, which must be distinct."""
    rows = [row for row in tree.rows("tuned") if row.point.provider == "grid"]
    assert len({row.slot for row in rows}) == len(rows)
    return rows


def without_optuna(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every import of Optuna fail."""
    (tree.root / "optuna.py").write_text("raise RuntimeError('Optuna is imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tree.root))


def test_a_search_measures_its_trials_and_the_baseline_as_rows_like_others(first: tuple[Tree, str]) -> None:
    tree, said = first
    rows = trials(tree)
    assert len(rows) == 12 and len(tree.rows("tuned")) == 13
    for row in rows:
        grid = row.point.parameters
        assert int(grid["block"]) < 256 or int(grid["stages"]) <= 2, "what does not fit is no trial"
        failed = {4: "runtime_error"}.get(int(grid["stages"]), "incorrect" if grid["block"] == 16 else "ok")
        assert row.outcome.status == failed
    assert "13 points measured" in said
    assert "13 of 33 are in outputs/timings/tuned/" in said
    assert (
        "search=tpe: 1 search among 32 configurations. Trials: 0 known from the ledger, 12 measured." in said
    )


def test_a_finished_search_has_nothing_to_do_and_imports_no_optuna(
    searched: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = searched.ledger("tuned").read_bytes()
    without_optuna(searched, monkeypatch)
    said = searched.run(*SEARCH, "trials=12")
    assert "Nothing to measure: outputs/timings/tuned/" in said
    assert "holds 12 trials of each search. Write a larger trials=" in said
    assert searched.ledger("tuned").read_bytes() == ledger


@pytest.mark.long
def test_a_sweep_of_every_point_goes_on_from_a_search_and_imports_no_optuna(
    searched: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {row.point: row for row in trials(searched)}
    without_optuna(searched, monkeypatch)
    every = ("block=16,32,64,128,256", "stages=1,2,3,4", "order=rows,columns")
    said = searched.run("kernel=tuned", "size=64", *every)
    assert "20 points measured" in said and "33 of 33 are in " in said
    after = {row.point: row for row in trials(searched)}
    assert len(after) == 32 and all(after[point] == row for point, row in before.items())
    done = searched.sweep(*SEARCH, "seconds=600")
    assert "holds every point" in done.stdout, "and of a whole grid nothing is left to search"


@pytest.mark.long
def test_pins_bind_and_a_search_that_is_stopped_goes_on_by_the_same_command(tmp_path: Path) -> None:
    tree = cpu_tree(tmp_path, "tuned")
    pinned = ("kernel=tuned", "size=64,128", "search=tpe", "trials=7", "stages=2,3", "order=rows")
    process = tree.start(*pinned)
    while process.poll() is None and not list(tree.root.glob("outputs/timings/tuned/*.jsonl")):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    process.communicate()
    known = len(trials(tree))
    said = tree.run(*pinned)
    assert "2 searches among 18 configurations" in said
    assert f"Trials: {known} known from the ledger, {14 - known} measured." in said
    rows = trials(tree)
    assert Counter(row.point.problem["elements"] for row in rows) == {64: 7, 128: 7}
    assert {row.point.parameters["stages"] for row in rows} <= {2, 3}
    assert {row.point.parameters["order"] for row in rows} == {"rows"}


def test_a_search_ends_by_time(searched: Tree) -> None:
    """One point takes longer than the time limit."""
    before = {row.point for row in trials(searched)}
    said = searched.run(*SEARCH, "seconds=0.000001")
    assert "Trials: 12 known from the ledger, 1 measured." in said
    assert len({row.point for row in trials(searched)} - before) == 1
