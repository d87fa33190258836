"""The pytest plugin: the fixture ``kernel_bench``, and comparisons of a commit with the working tree.

    def test_softmax(kernel_bench):
        kernel_bench(softmax, torch.randn(4096, 781, device="cuda"))

``pytest --kernel-save=FILE`` appends a JSON line for each call of the fixture. ``--kernel-compare=COMMIT``
runs the tests that use the fixture at that commit and in the working tree, in turns, and fails the tests that
are slower now. ``--kernel-report=FILE`` writes an HTML page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from pytest import ExitCode

if TYPE_CHECKING:
    from .bench_result import BenchResult
    from .statistics.verdicts import Estimate

FIXTURE = "kernel_bench"

Name = tuple[str, int]
"""The node id of a test, and the number of a call of the fixture in it, from 0."""


WRONG = ("the output is wrong", "the timed calls wrote another")
"""How the reason of a result begins whose output is wrong."""


class SlowerError(Exception):
    """A function is slower than at the other commit, or has no valid time now."""


@dataclass(frozen=True)
class CallRounds:
    """A call's valid times in the rounds, at the commit and now, in microseconds, with their ratio and
    verdict. ``why`` says why the output is wrong now."""

    label: str
    before_us: tuple[float, ...]
    now_us: tuple[float, ...]
    ratio: Estimate | None
    verdict: str
    why: str = ""


class Plugin:
    """The times and comparisons of a pytest session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.results: list[tuple[str, BenchResult]] = []
        self.compared: dict[str, list[CallRounds]] = {}
        self.problem: dict[str, str] = {}

    @pytest.fixture
    def kernel_bench(self, request: pytest.FixtureRequest) -> Callable[..., BenchResult]:
        """Time a function with the arguments of ``kernel_pipeline.bench``. Fail the test if the output is
        wrong."""
        from .benchmark import bench

        def measure(function: Callable[..., Any], *inputs: Any, **options: Any) -> BenchResult:
            result = bench(function, *inputs, **options)
            self.results.append((request.node.nodeid, result))
            save = self.config.getoption("kernel_save")
            if save:
                _append(Path(save), line(request.node.nodeid, result))
            if result.why.startswith(WRONG):
                pytest.fail(result.why)
            return result

        return measure

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """In a comparison deselect tests without the fixture, and in a round all tests except the given
        tests. They are given by a file, because pytest runs nothing if an argument names a missing test."""
        compare, nodes = config.getoption("kernel_compare"), config.getoption("kernel_nodes")
        if compare or nodes:
            named = Path(nodes).read_text().splitlines() if nodes else ()
            chosen = [
                item
                for item in items
                if FIXTURE in getattr(item, "fixturenames", ()) and (not nodes or item.nodeid in named)
            ]
            config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
            items[:] = chosen

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Run the rounds of a comparison before the tests report its result."""
        commit = self.config.getoption("kernel_compare")
        if commit and session.items and not session.config.option.collectonly:
            rounds = self.config.getoption("kernel_rounds")
            nodes = [item.nodeid for item in session.items]
            with tempfile.TemporaryDirectory(prefix="kernel-compare-") as folder:
                held = rounds_of(self.config.rootpath, commit, nodes, rounds, Path(folder))
            self.compared = {node: [] for node in nodes}
            for name, one in judged(held).items():
                self.compared.setdefault(name[0], []).append(one)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """In a comparison report the test's result from the rounds instead of running the test again."""
        if not self.config.getoption("kernel_compare"):
            return None
        found = self.compared.get(pyfuncitem.nodeid, [])
        if not found:
            raise SlowerError(f"{pyfuncitem.name}: kernel_bench gave no time at either commit.")
        for one in found:
            if one.verdict in ("slower", "failed"):
                raise SlowerError(said(one))
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the times and comparisons, and the files that were written; write the page."""
        rows = [said(one) for found in self.compared.values() for one in found]
        rows += [f"{node.rpartition('::')[2]}: {result}" for node, result in self.results]
        if not rows:
            return
        terminalreporter.section("kernel benchmarks")
        for row in rows:
            terminalreporter.write_line(row)
        if any(node for node, result in self.results if result.timer == "perf_counter"):
            terminalreporter.write_line("Timed on the CPU, where the inputs are.")
        for option, text in (("kernel_save", "Each time is a JSON line of"), ("kernel_report", "The page:")):
            if path := self.config.getoption(option):
                terminalreporter.write_line(f"{text} {path}")
        if path := self.config.getoption("kernel_report"):
            Path(path).write_text(page(self.results, self.compared))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("kernel benchmarks")
    group.addoption(
        "--kernel-save", metavar="FILE", help="append a JSON line to FILE for each call of kernel_bench"
    )
    group.addoption(
        "--kernel-compare",
        metavar="COMMIT",
        help="run the tests that use kernel_bench at COMMIT and in the working tree, and fail slower tests",
    )
    group.addoption(
        "--kernel-rounds", metavar="N", type=int, default=5, help="rounds of a comparison (default 5)"
    )
    group.addoption("--kernel-nodes", help=argparse.SUPPRESS)
    group.addoption("--kernel-report", metavar="FILE", help="write an HTML page with all times")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options and register the plugin."""
    if config.getoption("kernel_rounds") < 2:
        raise pytest.UsageError("--kernel-rounds: write 2 or more; one round does not show the noise.")
    if config.getoption("kernel_compare") and config.getoption("kernel_save"):
        raise pytest.UsageError("--kernel-save has no times of a comparison: leave out one of the options.")
    for option in ("kernel_save", "kernel_report"):
        path = config.getoption(option)
        if path and not Path(path).parent.is_dir():
            raise pytest.UsageError(f"--{option.replace('_', '-')}: {Path(path).parent} is not a folder.")
        if path and Path(path).is_dir():
            raise pytest.UsageError(f"--{option.replace('_', '-')}: {path} is a folder: name a file.")
    config.pluginmanager.register(Plugin(config), "kernel_bench")


def line(node: str, result: BenchResult) -> dict[str, Any]:
    """Return a call of the fixture as a JSON object."""
    import torch

    return {
        "test": node,
        "device": result.device,
        "name": result.name,
        "timer": result.timer,
        "cache": result.cache,
        "median_us": result.median_us,
        "interval_us": result.interval,
        "samples_us": result.samples_us,
        "host_us": result.host_us,
        "valid": result.valid,
        "why": result.why,
        "torch": torch.__version__,
    }


def _append(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


Round = dict[Name, dict[str, Any]]
"""The rows of one side in one round, by call."""


def rounds_of(
    root: Path, commit: str, nodes: Sequence[str], rounds: int, folder: Path
) -> dict[str, list[Round]]:
    """Run tests at a commit and in the working tree alternately, each run in a separate process. Return the
    rounds of the sides ``before`` and ``now``.

    Raises pytest.UsageError for an unknown commit, and if the tests of a run give no time.
    """
    tree = folder / "tree"
    added = _git(root, "worktree", "add", "--detach", str(tree), commit)
    if added.returncode:
        raise pytest.UsageError(f"--kernel-compare={commit}: {added.stderr.strip().splitlines()[-1]}")
    top = Path(_git(root, "rev-parse", "--show-toplevel").stdout.strip())
    sides = {"before": tree / root.relative_to(top), "now": root}
    found: dict[str, list[Round]] = {side: [] for side in sides}
    try:
        for number in range(rounds):
            for side in list(sides) if number % 2 == 0 else list(sides)[::-1]:
                file = folder / f"{side}-{number}.jsonl"
                printed = _run(sides[side], nodes, file)
                found[side].append(_read(file))
                if printed and not found[side][-1]:
                    where = commit if side == "before" else "the working tree"
                    raise pytest.UsageError(
                        f"--kernel-compare: the tests gave no time at {where}:\n{printed}"
                    )
    finally:
        _git(root, "worktree", "remove", "--force", str(tree))
    return found


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)


def _run(root: Path, nodes: Sequence[str], file: Path) -> str:
    """Run the tests that a side has. Return the end of pytest's output; empty if the side has no such
    test."""
    files = dict.fromkeys(node.partition("::")[0] for node in nodes)
    there = [name for name in files if (root / name).exists()]
    if not there:
        return ""
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    chosen = file.with_suffix(".nodes")
    chosen.write_text("\n".join(nodes))
    own = [f"--kernel-save={file}", "--kernel-compare=", "--kernel-report=", f"--kernel-nodes={chosen}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *own, *there],
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == ExitCode.NO_TESTS_COLLECTED:
        return ""
    return done.stdout.strip()[-1000:] or f"pytest ended with {done.returncode}"


def _read(file: Path) -> Round:
    found: Round = {}
    calls: dict[str, int] = {}
    for text in file.read_text().splitlines() if file.exists() else ():
        row = json.loads(text)
        calls[row["test"]] = calls.get(row["test"], -1) + 1
        found[row["test"], calls[row["test"]]] = row
    return found


def judged(held: Mapping[str, Sequence[Round]]) -> dict[Name, CallRounds]:
    """Compare the times of each call on both sides, by test and number."""
    from .statistics.verdicts import Rule, estimate, verdicts

    names = dict.fromkeys(name for rounds in held.values() for one in rounds for name in one)
    pairs = {name: list(_pairs(held, name)) for name in names}
    estimates = {
        name: estimate([now / before for before, now in some], Rule()) for name, some in pairs.items() if some
    }
    said_of: Mapping[Name, str] = verdicts(estimates, Rule())
    found = {}
    for name in names:
        label = f"{name[0].rpartition('::')[2]}" + (f" (call {name[1] + 1})" if name[1] else "")
        before, now = (_valid(held[side], name) for side in ("before", "now"))
        verdict = said_of.get(name, "undecided")
        rows = [one[name] for one in held["now"] if name in one]
        why = next((row["why"] for row in rows if row["why"].startswith(WRONG)), "")
        if why or (before and not now):
            verdict = "failed"
        elif now and not before:
            verdict = "new"
        found[name] = CallRounds(label, before, now, estimates.get(name), verdict, why)
    return found


def _pairs(held: Mapping[str, Sequence[Round]], name: Name) -> Iterator[tuple[float, float]]:
    for before, now in zip(held["before"], held["now"], strict=True):
        rows = before.get(name), now.get(name)
        if all(row is not None and row["valid"] for row in rows):
            yield rows[0]["median_us"], rows[1]["median_us"]  # type: ignore[index]


def _valid(rounds: Sequence[Round], name: Name) -> tuple[float, ...]:
    rows = [one[name] for one in rounds if name in one]
    return tuple(row["median_us"] for row in rows if row["valid"])


def said(one: CallRounds) -> str:
    """Return a comparison as one line of text."""
    if one.verdict == "new":
        return f"{one.label}: {median(one.now_us):.4g} us, new"
    if one.why:
        return f"{one.label}: {one.why}"
    if one.verdict == "failed":
        return f"{one.label}: no valid time now, {median(one.before_us):.4g} us before"
    if one.ratio is None:
        return f"{one.label}: undecided: no round with valid times on both sides"
    times = f"{median(one.before_us):.4g} us before, {median(one.now_us):.4g} us now"
    ratio = f"x {one.ratio.ratio:.3f} [{one.ratio.low:.3f}, {one.ratio.high:.3f}]"
    return f"{one.label}: {one.verdict}: {times}, {ratio}, {one.ratio.rounds} rounds"


def page(results: Sequence[tuple[str, BenchResult]], compared: Mapping[str, Sequence[CallRounds]]) -> str:
    """Return an HTML page with all times and comparisons."""
    from .comparison import html_table

    rows = [["test", "function", "us", "interval", "timer", "valid"]]
    for node, one in results:
        interval = "{:.4g} to {:.4g}".format(*one.interval)
        valid = "yes" if one.valid else one.why
        rows.append([node, one.name, f"{one.median_us:.4g}", interval, f"{one.timer}, {one.cache}", valid])
    pairs = [["test", "before [us]", "now [us]", "ratio", "interval", "verdict"]]
    for found in compared.values():
        for pair in found:
            times = [f"{median(some):.4g}" if some else "" for some in (pair.before_us, pair.now_us)]
            ratio = ["", ""]
            if pair.ratio:
                ratio = [f"{pair.ratio.ratio:.3f}", f"{pair.ratio.low:.3f} to {pair.ratio.high:.3f}"]
            pairs.append([pair.label, *times, *ratio, pair.verdict])
    tables = "".join(html_table(some) for some in (pairs, rows) if len(some) > 1)
    style = "body{font:15px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left}"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Kernel benchmarks</title>"
        f"<style>{style}</style><h1>Kernel benchmarks</h1>{tables}</html>\n"
    )
