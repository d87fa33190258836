"""Rows are carried over an edit of the instrument that changes no time, and over no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted.tree import Tree, cpu_tree
from tests.repository import commit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
    pytest.mark.xdist_group("carry"),
]

QUICK = ("kernel=quick", "size=[64,65]", "provider=mul")
SAMPLED = "samples.append((perf_counter() - start) / batch * 1e6)"


def carry(tree: Tree, margin: float) -> subprocess.CompletedProcess[str]:
    words = ["kernel=quick", "device=cpu", "preset=smoke", "timing.max_seconds=0.002", "output=outputs"]
    return subprocess.run(
        [sys.executable, "-m", "pipeline.carry", *words, "points=2", "rounds=1", f"margin={margin}"],
        cwd=tree.root,
        env=os.environ | {"TMPDIR": str(tree.temporary), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def edit_the_timer(tree: Tree, old: str, new: str) -> None:
    timer = tree.root / "pipeline" / "timing" / "timers" / "cpu.py"
    text = timer.read_text()
    assert old in text
    timer.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, str]:
    """A tree whose ledger holds two points, all of it committed."""
    tree = cpu_tree(tmp_path_factory.mktemp("measured"), "quick")
    (tree.root / ".gitignore").write_text("outputs/\nlocal/\nbuild/\n__pycache__/\n")
    made = commit(tree.root)
    done = tree.sweep(*QUICK)
    assert done.returncode == 0, done.stderr
    return tree, made


def test_an_edit_that_changes_no_time_keeps_the_rows(measured: tuple[Tree, str], tmp_path: Path) -> None:
    tree, first = measured[0].copy(tmp_path), measured[1]
    before = tree.rows("quick")
    edit_the_timer(tree, "SHORTEST_SAMPLE_US = 200.0", "SHORTEST_SAMPLE_US = 201.0")
    commit(tree.root)
    # Wide: a CPU that others use times such short calls differently from one moment to the next.
    done = carry(tree, margin=0.95)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rows carried over" in done.stdout
    rows = tree.rows("quick")
    assert [row.outcome for row in rows] == [row.outcome for row in before], "no time has changed"
    assert {row.key for row in rows}.isdisjoint(row.key for row in before)
    for row in rows:
        (carried,) = row.origin.carried
        assert (carried.commit, carried.points) == (first, 2)
        assert row.origin.commit == first
    assert "Nothing to measure" in tree.sweep(*QUICK).stdout
    again = carry(tree, margin=0.95)
    assert "nothing to carry" in again.stdout
    edit_the_timer(tree, "SHORTEST_SAMPLE_US = 201.0", "SHORTEST_SAMPLE_US = 202.0")
    last = commit(tree.root)
    done = carry(tree, margin=0.95)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row.origin.carried[-1].to for row in tree.rows("quick")] == [last, last]
    assert [len(row.origin.carried) for row in tree.rows("quick")] == [2, 2]
    worktrees = subprocess.run(
        ["git", "worktree", "list"], cwd=tree.root, capture_output=True, text=True, check=True
    )
    assert len(worktrees.stdout.splitlines()) == 1


def test_an_edit_that_changes_times_carries_nothing(measured: tuple[Tree, str], tmp_path: Path) -> None:
    tree = measured[0].copy(tmp_path)
    before = tree.ledger("quick").read_bytes()
    edit_the_timer(tree, SAMPLED, SAMPLED.replace("1e6", "1e9"))
    commit(tree.root)
    done = carry(tree, margin=0.95)
    assert done.returncode == 2
    assert "the instruments differ: nothing was carried" in done.stderr
    assert "Traceback" not in done.stderr
    assert tree.ledger("quick").read_bytes() == before
