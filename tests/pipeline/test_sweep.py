"""What a sweep measures again, and how two of them share a device: real commands in a copy of the tree."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from kernels.point import Point
from pipeline.measure import device
from pipeline.measure.record import Measurement
from tests.planted.tree import Tree, cpu_tree

HOT = "timing.cache=hot"


# What they begin with, a sweep of everything, is measured once.
pytestmark = pytest.mark.xdist_group("sweep")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that a sweep of everything wrote, and what the sweep printed."""
    tree = cpu_tree(tmp_path_factory.mktemp("first"), "quick")
    done = tree.sweep("kernel=quick", HOT)
    assert (done.returncode, done.stderr) == (0, "")
    return tree.root / "outputs", done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return cpu_tree(tmp_path, "quick")


@pytest.fixture
def swept(tree: Tree, first: tuple[Path, str]) -> Tree:
    """A tree of its own in which everything was measured."""
    shutil.copytree(first[0], tree.root / "outputs")
    return tree


def newly_measured(tree: Tree, *options: str) -> tuple[set[tuple[str, int]], str]:
    """Providers and sizes that a sweep of quick measures, as the ledger shows it, and what it prints."""
    before = {row.model_dump_json() for row in tree.rows("quick")}
    done = tree.sweep("kernel=quick", HOT, *options)
    assert (done.returncode, done.stderr) == (0, "")
    rows = in_order(tree)
    new = [row for row in rows if row.model_dump_json() not in before]
    assert f"{len(new)} points measured" in done.stdout
    return {(row.point.provider, row.point.size) for row in new}, done.stdout


def in_order(tree: Tree) -> list[Measurement]:
    """The ledger's rows."""
    rows = tree.rows("quick")
    assert len({row.point for row in rows}) == len(rows) == lines(tree), "one line a point"
    order = [(r.point.provider, r.point.dtype, r.point.size, r.point.block_size or 0) for r in rows]
    assert order == sorted(order)
    return rows


def lines(tree: Tree) -> int:
    paths = list((tree.root / "outputs").glob("timings/quick/*.jsonl"))
    return sum(path.read_bytes().count(b"\n") for path in paths)


EVERYTHING = {("mul", 64), ("mul", 128), ("blocks", 64), ("blocks", 128)}


def test_measures_only_what_the_ledger_lacks(swept: Tree, first: tuple[Path, str]) -> None:
    assert {(row.point.provider, row.point.size) for row in in_order(swept)} == EVERYTHING
    assert "4 points measured" in first[1]
    assert "4 of 4 are in outputs/timings/quick/" in first[1]
    before = swept.ledger("quick").stat()

    measured, said = newly_measured(swept)
    assert measured == set()
    assert "Nothing to measure: outputs/timings/quick/" in said
    assert "remeasure=true" in said
    after = swept.ledger("quick").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino), "not even written"

    measured, _ = newly_measured(swept, "size=[64,128,256]", "block_size=[256]")
    assert measured == {("mul", 256), ("blocks", 256)}, "a wider grid"

    measured, _ = newly_measured(swept, "provider=mul", "size=64", "remeasure=true")
    assert measured == {("mul", 64)}
    assert lines(swept) == 6, "rows that were not asked for stay while they are current"


def test_measures_again_what_has_changed(swept: Tree) -> None:
    source = swept.root / "kernels" / "quick" / "blocks.py"
    source.write_text(source.read_text().replace("return x + x", "return x * 3"))
    measured, _ = newly_measured(swept)
    assert measured == {("blocks", 64), ("blocks", 128)}, "only the points of the edited source"
    statuses = {(row.point.provider, row.outcome.status) for row in swept.rows("quick")}
    assert statuses == {("mul", "ok"), ("blocks", "incorrect")}

    contract = swept.root / "kernels" / "quick" / "__init__.py"
    contract.write_text(contract.read_text() + "\n# A comment.\n")
    assert newly_measured(swept)[0] == EVERYTHING, "the contract counts for every provider"
    assert newly_measured(swept, "timing.min_samples=9")[0] == EVERYTHING, "other settings of the timing"


def test_rows_that_no_longer_hold_are_dropped_with_the_next_sweep(swept: Tree) -> None:
    source = swept.root / "kernels" / "quick" / "blocks.py"
    source.write_text(source.read_text() + "\n# A comment.\n")
    newly_measured(swept, "provider=mul", "size=64")
    assert {(row.point.provider, row.point.size) for row in swept.rows("quick")} == {
        ("mul", 64),
        ("mul", 128),
    }


def test_rows_of_a_peer_stay_where_its_package_is_missing(swept: Tree) -> None:
    """Such a provider is unknown here. mul is written in the contract, as peers are, blocks elsewhere."""
    ledger = swept.ledger("quick")
    text = ledger.read_text()
    ledger.write_text(text + text.replace('"mul"', '"peer"').replace('"blocks"', '"removed"'))
    newly_measured(swept, "provider=mul", "size=64", "remeasure=true")
    providers = {row.point.provider for row in swept.rows("quick")}
    assert providers == {"mul", "blocks", "peer"}


def test_writes_beside_the_ledger_what_it_is_read_with(swept: Tree) -> None:
    (row, *_) = swept.rows("quick")
    slug, outputs = device.cpu().slug, swept.root / "outputs"
    environment = json.loads((outputs / "environment" / f"{slug}.json").read_text())
    assert row.origin.environment == device.Environment(**environment).digest
    assert "kernel:" in (outputs / "timings" / "quick" / f"{slug}.yaml").read_text()
    assert row.point == Point("quick", "blocks", 64, "float32", block_size=256)
    state = row.outcome.state
    assert state is not None
    assert state.noise_floor is not None
    assert state.threads is not None


def lock_file(tree: Tree) -> Path:
    return tree.temporary / f"kernel-pipeline-{device.cpu().slug}.lock"


def test_a_second_sweep_waits_or_gives_up_and_says_for_whom(tree: Tree) -> None:
    long = (
        "kernel=quick",
        HOT,
        "provider=mul",
        "size=64",
        "timing.stopping=budget",
        "timing.max_seconds=600",
    )
    holder = tree.start(*long, "point_timeout_s=900")
    waiting = None
    try:
        while not (lock_file(tree).exists() and lock_file(tree).read_text()):
            assert holder.poll() is None, holder.communicate()
        gave_up = tree.sweep("kernel=quick", "wait_s=0", "output=other")
        assert gave_up.returncode == 2
        assert gave_up.stderr.count("\n") == 1
        assert f"is being measured on by process {holder.pid} (-m pipeline.sweep " in gave_up.stderr
        assert "gave up after 0 s (wait_s=null waits)." in gave_up.stderr
        assert not (tree.root / "other").exists()

        waiting = tree.start("kernel=quick", HOT)
        assert waiting.stdout is not None
        said = waiting.stdout.readline()
        assert said.startswith("Waiting for ")
        assert f"process {holder.pid} " in said
        # The lock is free as soon as its holder is gone, however it went.
        os.kill(holder.pid, signal.SIGKILL)
        out, err = waiting.communicate()
        assert (waiting.returncode, err) == (0, "")
        assert "4 points measured" in out
    finally:
        for process in filter(None, (holder, waiting)):
            process.kill()
            process.communicate()
