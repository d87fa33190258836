"""Which points a sweep measures again, and how two sweeps share a device, with real commands in a copy of
the tree."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kernel_pipeline.contract import Provider
from kernel_pipeline.machine import device, load
from kernel_pipeline.records.base import Values, digest
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point, order
from pipeline.points import notation
from pipeline.store.ledger import encode, read_rows
from tests.planted.tree import Tree, cpu_tree, size

HOT = "timing.cache=hot"


# The tests share one full sweep.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sweep")]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tree, str]:
    """Return a tree in which everything is measured, and the sweep's output."""
    tree = cpu_tree(tmp_path_factory.mktemp("first"), "quick")
    return tree, tree.run("kernel=quick", HOT)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return cpu_tree(tmp_path, "quick")


@pytest.fixture
def swept(tmp_path: Path, first: tuple[Tree, str]) -> Tree:
    """Return a test's own copy of that tree."""
    return first[0].copy(tmp_path)


def newly_measured(tree: Tree, *options: str) -> tuple[set[tuple[str, int]], str]:
    """Sweep quick. Return the providers and sizes that the ledger gained, and the printed text."""
    before = {row.to_json().decode() for row in tree.rows("quick")}
    said = tree.run("kernel=quick", HOT, *options)
    rows = in_order(tree)
    new = [row for row in rows if row.to_json().decode() not in before]
    assert f"{notation.points(len(new))} measured" in said
    return {(row.point.provider, size(row.point)) for row in new}, said


def in_order(tree: Tree) -> list[Measurement]:
    """Return the ledger's rows, which must be sorted and distinct."""
    rows = tree.rows("quick")
    assert len({row.slot for row in rows}) == len(rows) == lines(tree), "one line a point and its settings"
    assert rows == sorted(rows, key=lambda row: (order(row.point), row.parts.settings))
    return rows


def lines(tree: Tree) -> int:
    paths = list((tree.root / "outputs").glob("timings/quick/*.jsonl"))
    return sum(path.read_bytes().count(b"\n") for path in paths)


EVERYTHING = {("mul", 64), ("mul", 128), ("blocks", 64), ("blocks", 128)}


def test_measures_only_what_the_ledger_lacks(swept: Tree, first: tuple[Tree, str]) -> None:
    assert {(row.point.provider, size(row.point)) for row in in_order(swept)} == EVERYTHING
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


@pytest.mark.long
def test_every_time_is_audited_on_demand_and_else_one_of_each_workload_at_least(swept: Tree) -> None:
    swept.run("kernel=quick", "audit=all", "output=outputs/all")
    rows = swept.rows("quick", "outputs/all")
    assert {(row.point.provider, size(row.point)) for row in rows} == EVERYTHING
    assert [row.outcome for row in rows if not is_looked_at(row)] == []
    swept.run("kernel=quick", "size=[64,128,256,512,1024]", "output=outputs/some")
    for provider in ("mul", "blocks"):
        rows = [row for row in swept.rows("quick", "outputs/some") if row.point.provider == provider]
        assert any(map(is_looked_at, rows))


def is_looked_at(row: Measurement) -> bool:
    """Return whether a time was audited, or could not be audited because of other load."""
    state = row.outcome.state
    is_tried = state is not None and str(state.invalid_reason).startswith(
        ("not audited: ", "its threads had")
    )
    return row.outcome.audit_ratio is not None or is_tried


BLOCKS = {("blocks", 64), ("blocks", 128)}


def edit(tree: Tree, name: str, old: str, new: str) -> None:
    """Replace a text of the planted kernel's file once."""
    path = tree.root / "kernels" / "quick" / name
    assert path.read_text().count(old) >= 1
    path.write_text(path.read_text().replace(old, new, 1))


def test_measures_again_what_has_changed(swept: Tree) -> None:
    first = times(swept)
    edit(swept, "sums.py", "return x + x", "return x * 3")
    measured, said = newly_measured(swept)
    assert measured == BLOCKS, "only the points whose provider reaches the edit"
    statuses = {(row.point.provider, row.outcome.status) for row in swept.rows("quick")}
    assert statuses == {("mul", "ok"), ("blocks", "incorrect")}
    assert earlier(swept) == {point: us for point, us in first.items() if point.provider == "blocks"}
    assert "was us" not in said, "what is wrong now is in no table"

    edit(swept, "reference.py", "x.double() * 2", "2 * x.double()")
    measured, said = newly_measured(swept)
    assert measured == EVERYTHING, "the reference counts for every provider"
    assert earlier(swept) == first, "of what was wrong in between the last time that counted"
    assert "was us" in said
    assert "not in the same run; python -m pipeline.compare kernel=quick a=HEAD measures both" in said


def times(tree: Tree) -> dict[Point, float]:
    """Return the median of each timed point."""
    timed = ((row.point, row.outcome.timing) for row in tree.rows("quick"))
    return {point: timing.median_us for point, timing in timed if timing is not None}


def earlier(tree: Tree) -> dict[Point, float]:
    """Return the median before the last edit of each point that has one."""
    rows = ((row.point, row.earlier) for row in tree.rows("quick"))
    return {point: before.median_us for point, before in rows if before is not None}


def test_what_decides_no_number_measures_nothing_again(swept: Tree) -> None:
    before = swept.ledger("quick").read_bytes()
    edit(swept, "blocks.py", "def add", "# A comment, and a docstring.\n\n\ndef add")
    edit(swept, "blocks.py", "    return twice(x)", '    """Twice."""\n    return twice(\n        x\n    )')
    edit(swept, "sums.py", "def twice", "def unused() -> None: ...\n\n\ndef twice")
    edit(swept, "__init__.py", "512, unit", "512, 1024, unit")
    edit(
        swept,
        "__init__.py",
        "    providers=(\n",
        '    providers=(\n        Provider("more", "torch.py:mul"),\n',
    )
    yaml = swept.root / "conf/kernel/quick.yaml"
    yaml.write_text(yaml.read_text() + "  more: {workloads: [vectors], blocks: all}\n")
    for name in ("pipeline/inspection/sass.py", "pipeline/reporting/plots.py", "pipeline/report.py"):
        path = swept.root / name
        path.write_text(path.read_text() + "\n\nMORE = 1\n")
    measured, said = newly_measured(swept, "provider=[mul,blocks]")
    assert measured == set()
    assert "Nothing to measure" in said
    assert swept.ledger("quick").read_bytes() == before


def test_rows_of_other_settings_stand_beside_each_other(swept: Tree) -> None:
    assert newly_measured(swept, "timing.min_samples=9", "size=64")[0] == {("mul", 64), ("blocks", 64)}
    assert lines(swept) == 6


def test_rows_that_were_not_asked_for_stay_whether_current_or_old_or_of_providers_that_are_gone(
    swept: Tree,
) -> None:
    ledger = swept.ledger("quick")
    gone = [line.replace('"blocks"', '"removed"') for line in ledger.read_text().splitlines()]
    rows = [json.loads(line) for line in gone if '"removed"' in line]
    shared = swept.rows("quick")[0].parts
    for row in rows:
        point = digest(Point.from_dict(row["point"]).to_dict())
        row["key"] = shared.replace(**row["parts"], point=point).key
    ledger.write_text(ledger.read_text() + "".join(json.dumps(row) + "\n" for row in rows))
    assert len(swept.rows("quick")) == 6
    edit(swept, "sums.py", "return x + x", "return 2 * x")
    measured, _ = newly_measured(swept, "provider=mul", "size=64", "remeasure=true")
    assert measured == {("mul", 64)}
    assert sorted({row.point.provider for row in swept.rows("quick")}) == ["blocks", "mul", "removed"]
    assert lines(swept) == 6


def test_writes_beside_the_ledger_what_it_is_read_with(swept: Tree) -> None:
    (row, *_) = swept.rows("quick")
    slug, outputs = device.cpu().slug, swept.root / "outputs"
    environment = json.loads((outputs / "environment" / f"{slug}.json").read_text())
    relevant_environment = Environment.from_dict(environment).keyed_for(
        Provider("blocks", "blocks.py:add", language="torch")
    )
    assert row.parts.environment == digest(relevant_environment)
    assert "kernel:" in (outputs / "timings" / "quick" / f"{slug}.yaml").read_text()
    assert row.point == Point(
        kernel="quick",
        provider="blocks",
        problem=Values({"elements": 64, "dtype": "float32"}),
        parameters=Values({"block_size": 256}),
    )
    assert row.workload == "vectors"
    assert row.origin.command.startswith("python -m pipeline.sweep ")
    assert row.origin.command.endswith(f"kernel=quick {HOT}")
    assert len({row.origin.run for row in swept.rows("quick")}) == 1
    state = row.outcome.state
    assert state is not None
    assert state.noise_floor is not None
    assert state.threads is not None
    if any(one.ran_us for one in load.threads_of(os.getpid()).values()):  # Linux counts run time here
        assert state.run_delay is not None and 0 <= state.run_delay <= 1
    assert state.valid or state.invalid_reason, "a busy machine is said"


def lock_file(tree: Tree) -> Path:
    return tree.temporary / f"kernel-pipeline-{os.geteuid()}" / f"{device.cpu().slug}.lock"


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
        assert f"process {holder.pid} (sweep) is still measuring on " in gave_up.stderr
        assert "gave up after 0 s (wait_s=null waits without limit)." in gave_up.stderr
        assert not (tree.root / "other").exists()

        waiting = tree.start("kernel=quick", HOT)
        assert waiting.stdout is not None
        said = waiting.stdout.readline()
        assert said.startswith("Waiting for ")
        assert f"process {holder.pid} " in said
        # The lock becomes free when its holder ends, however it ended.
        os.kill(holder.pid, signal.SIGKILL)
        out, err = waiting.communicate()
        assert (waiting.returncode, err) == (0, "")
        assert "4 points measured" in out
    finally:
        for process in filter(None, (holder, waiting)):
            process.kill()
            process.communicate()


def beside(tree: Tree) -> list[str]:
    """Return the files of the results folder, except locks and the records of runs."""
    found = (path.relative_to(tree.root / "outputs") for path in (tree.root / "outputs").rglob("*.*"))
    slug = device.cpu().slug
    names = (str(path).replace(slug, "cpu") for path in found if path.suffix != ".lock")
    return sorted(name for name in names if not name.startswith("runs/"))


DESCRIBED = [
    "ceilings/cpu.json",
    "environment/cpu.json",
    "provenance/cpu.jsonl",
    "timings/quick/cpu.jsonl",
    "timings/quick/cpu.yaml",
]


@pytest.mark.long
def test_a_results_folder_that_is_removed_midway_is_whole_in_the_end(tree: Tree) -> None:
    known = tree.root / "local/results/ceilings"
    (tree.root / "outputs").mkdir()
    shutil.move(known, tree.root / "outputs/ceilings")  # as if the sweep had measured them itself
    many = ("kernel=quick", HOT, f"size=[{','.join(map(str, range(1, 16)))}]")
    process = tree.start(*many)
    while process.poll() is None and lines(tree) < 6:
        time.sleep(0.002)
    # The sweep may write a line during the removal, so repeat it.
    while (tree.root / "outputs/timings").exists():
        shutil.rmtree(tree.root / "outputs", ignore_errors=True)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), out
    assert "rows of this run had disappeared from outputs/timings/quick/" in out
    assert "30 of 30 are in outputs/timings/quick/" in out
    assert len(in_order(tree)) == 30
    assert beside(tree) == DESCRIBED

    # If everything but the ledger is missing, a sweep with nothing to measure writes it again.
    for name in DESCRIBED:
        path = tree.root / "outputs" / name.replace("cpu.", f"{device.cpu().slug}.")
        if path.suffix != ".jsonl":
            path.unlink()
    tree.know_ceilings(device.cpu())
    said = tree.run(*many)
    assert "Nothing to measure" in said
    assert beside(tree) == DESCRIBED[1:], "the ceilings are those of the repository's own results"


def test_two_sweeps_that_share_the_results_folder_alone_lose_no_row(tree: Tree) -> None:
    """Two containers or nodes have separate folders for temporary files, so they share no lock on the
    device. One sweep is stopped while the other measures, and both compact the ledger."""
    sizes = {name: list(range(first, 11, 2)) for name, first in (("odd", 1), ("even", 2))}

    def start(name: str) -> subprocess.Popen[str]:
        tree.temporary = tree.root.parent / name
        tree.temporary.mkdir()
        return tree.start("kernel=quick", HOT, f"size=[{','.join(map(str, sizes[name]))}]")

    first, second = start("odd"), start("even")
    while second.poll() is None and not any(size(row.point) % 2 == 0 for row in whole_rows(tree)):
        time.sleep(0.002)
    second.send_signal(signal.SIGINT)
    (said, _), (all_said, _) = second.communicate(), first.communicate()
    assert (first.returncode, second.returncode) in ((0, 130), (0, 0)), all_said + said
    measured = [int(re.search(r"(\d+) points? measured", text)[1]) for text in (all_said, said)]  # type: ignore[index]
    found = [size(row.point) % 2 for row in in_order(tree)]
    assert [found.count(1), found.count(0)] == measured
    assert measured[0] == 10 and measured[1] > 0


def whole_rows(tree: Tree) -> list[Measurement]:
    """Return the rows that are readable while others write."""
    paths = list((tree.root / "outputs").glob("timings/quick/*.jsonl"))
    return [row for path in paths for row in read_rows(path, lambda sentence: None)]


def test_a_kernels_work_is_told_anew_and_nothing_is_measured_for_it(swept: Tree) -> None:
    tree = swept
    before = tree.rows("quick")
    declaration = tree.root / "kernels" / "quick" / "__init__.py"
    declaration.write_text(declaration.read_text().replace("shape, shape)", "shape, shape, shape)"))
    said = tree.run("kernel=quick", HOT)
    assert "Nothing to measure" in said
    rows = tree.rows("quick")
    assert [(row.key, row.outcome) for row in rows] == [(row.key, row.outcome) for row in before]
    for old, new in zip(before, rows, strict=True):
        assert old.rate is not None and new.rate is not None
        assert (new.rate.bytes, new.rate.gbps) == (
            old.rate.bytes * 3 // 2,
            pytest.approx(1.5 * old.rate.gbps),
        )


def test_rows_that_had_to_do_without_ceilings_get_their_share_of_them_later(swept: Tree) -> None:
    before = swept.rows("quick")
    bare = [
        row.replace(rate=row.rate and row.rate.replace(bound=None, ceiling_fraction=None)) for row in before
    ]
    assert bare != before
    swept.ledger("quick").write_bytes(b"".join(map(encode, bare)))
    said = swept.run("kernel=quick", HOT)
    assert "Nothing to measure" in said
    assert swept.rows("quick") == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return Work(", "return 1 / 0, Work(", "work of quick raised kernels/quick/__init__.py:"),
        (
            'Provider("mul", "torch.py:mul")',
            'Provider("mul", "torch.py:mul", fits=lambda problem, parameters, gpu: gpu.l2_cache)',
            "fits of mul of quick raised kernels/quick/__init__.py:",
        ),
    ],
)
def test_an_authors_function_that_raises_is_a_sentence(tree: Tree, old: str, new: str, said: str) -> None:
    declaration = tree.root / "kernels" / "quick" / "__init__.py"
    text = declaration.read_text()
    assert old in text
    declaration.write_text(text.replace(old, new))
    done = tree.sweep("kernel=quick", HOT)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {said}")
    assert (
        f"`{next(line for line in declaration.read_text().splitlines() if new in line).strip()}`: "
        in done.stderr
    )
    assert re.search(r": (ZeroDivision|Attribute)Error: ", done.stderr)
    assert done.stderr.count("\n") == 1
