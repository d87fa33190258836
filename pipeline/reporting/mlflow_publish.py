"""Results and ad-hoc sweeps to MLflow: ``publish`` writes them, ``how_to_open`` says where to look at them.

What the ledgers hold is shown as it is now. What an ad-hoc sweep measured stays as it was first shown. Both
can be made again in an empty store.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pipeline import UserError
from pipeline.machine import device
from pipeline.reporting import mlflow_address
from pipeline.reporting import mlflow_pages as pages
from pipeline.reporting import mlflow_view as view
from pipeline.reporting.mlflow_connection import TrackerError
from pipeline.reporting.mlflow_content import LedgerRuns
from pipeline.reporting.mlflow_runs import AD_HOC
from pipeline.reporting.mlflow_store import CHANGES, Change, Store, opened
from pipeline.reporting.progress import Progress
from pipeline.reporting.terminal import Terminal
from pipeline.store import comparisons, runs
from pipeline.store.comparisons import Comparison
from pipeline.store.credentials import hidden, public, taken_apart
from pipeline.store.runs import Heading

Say = Callable[[str], None]

COMPARISONS = "comparisons"
"""The experiment that shows them."""


MOST_NAMED = 400
"""Runs that a view's search names at most; an experiment's tag takes no more."""


@dataclass(frozen=True)
class Tracker:
    """What ``tracking=NAME`` and ``tracking.uri=URI`` say of the store; ``uri`` may hold a password."""

    name: str
    uri: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Files:
    """What is to be published: the ledgers below ``input`` with ``reports`` and ``artifacts``, and the
    records of ad-hoc sweeps in ``runs``; with either the comparisons that lie below it or beside it. None
    leaves a part out; ``kernel`` None is every kernel, ``device`` None every machine, and ``ids`` None every
    record."""

    input: Path | None = None
    runs: Path | None = None
    kernel: str | None = None
    reports: Path | None = None
    artifacts: Path | None = None
    ids: frozenset[str] | None = None
    device: str | None = None

    @property
    def options(self) -> list[str]:
        """The options of ``python -m pipeline.publish`` that publish these files."""
        words = {"input": self.input, "runs": self.runs, "kernel": self.kernel}
        words |= {"reports": self.reports, "artifacts": self.artifacts, "device": self.device}
        return [
            f"{name}={'null' if value is None else value}"
            for name, value in words.items()
            if name not in ("kernel", "device") or value is not None
        ]


@dataclass(frozen=True)
class Published:
    """The store that shows the files, without credentials; the ids of the experiments that do; the view to
    open where it is one; and the options of ``python -m pipeline.publish`` that would write them again."""

    uri: str
    experiments: tuple[str, ...]
    view: str | None = None
    options: tuple[str, ...] = ()


def publish(files: Files, tracker: Tracker, say: Say) -> Published | None:
    """Make the store show the files; None, after a sentence, when they hold no measurements.

    ``say`` gets sentences for the user. Raises UserError when the input is not there, lacks the kernel, or
    the store can't be used.
    """
    gpu = None if files.device is None else device.resolve(files.device).slug
    records = {
        path: heading
        for path, heading in (runs.records(files.runs, view.warn) if files.runs else {}).items()
        if files.kernel in (None, heading.kernel)
        and gpu in (None, heading.environment.gpu)
        and (files.ids is None or heading.run in files.ids)
    }
    ledgers: Iterator[LedgerRuns] = iter(())
    first = None
    if files.input is not None:
        ledgers = view.read(files.input, files.kernel, files.reports, files.artifacts, gpu)
        first = next(ledgers, None)
        if files.kernel is not None and first is None and not records:
            there = sorted({one.parent.params["kernel"] for one in view.read(files.input)})
            if there:
                raise UserError(
                    f"{files.input} holds no measurements of {files.kernel}, only of {', '.join(there)}."
                )
    made = {
        path: one
        for place in dict.fromkeys(filter(None, [files.input, files.runs and files.runs.parent]))
        for path, one in comparisons.load(place, view.warn).items()
        if files.kernel in (None, one.kernel) and gpu in (None, one.gpu)
    }
    if first is None and not records and not made:
        place = files.input or files.runs
        say(f"{place} holds no measurements yet: nothing to publish. `dvc repro` makes some.")
        return None
    chosen = mlflow_address.store_of(tracker.name, tracker.uri)
    options = (*files.options, *_options(tracker))
    try:
        with opened(chosen, say=say) as store:
            every = ledgers if first is None else chain([first], ledgers)
            experiments = _log(store, every, records, say)
            compared = _log_comparisons(store, made, say)
            shown = pages.BEST if experiments else pages.COMPARED
            asked = {} if first is not None else records if files.ids else _newest(records)
            if sweeps := list(_shown_of(asked, warn=lambda _: None)):
                shown = _keep_view(store, experiments[sweeps[0].parent.params["kernel"]], sweeps)
    except TrackerError as error:
        again = shlex.join(["python", "-m", "pipeline.publish", *options])
        unsaid = tracker.uri is not None and "tracking=server" in options
        how = " set MLFLOW_TRACKING_URI to it and run:" if unsaid else " run:"
        places = " and ".join(str(place) for place in (files.input, files.runs) if place)
        raise UserError(
            f"can't publish to {public(chosen)}: {hidden(str(error), [chosen])}. Nothing measured is lost, "
            f"it lies in {places}; once the store can be used,{how} {again}"
        ) from error
    return Published(_kept(chosen), tuple(experiments.values()) or compared, shown, options)


def how_to_open(published: Published) -> str:
    """One line that says where the runs can be seen."""
    uri = published.uri
    if mlflow_address.is_server(uri):
        return f"Open {page(published, uri)}"
    command = "make ui"
    if uri != mlflow_address.DEFAULT_STORE:
        command = shlex.join(["python", "-m", "pipeline.ui", *published.options])
    return f"Run `{command}` and open {page(published, 'http://127.0.0.1:5000')}"


def page(published: Published, server: str) -> str:
    """Where a server shows what was published."""
    return pages.page(server, published.experiments, published.view)


def _kept(uri: str) -> str:
    """The store as it may be kept and shown. No path is cut: a server may be mounted at one."""
    return taken_apart(uri).uri if mlflow_address.is_server(uri) else public(uri)


def _options(tracker: Tracker) -> list[str]:
    """The options that name the same store, without a password: that is for the environment to hold."""
    if tracker.uri is None:
        return ["tracking=server"] if tracker.name == "server" else []
    return ["tracking=server"] if tracker.uri != public(tracker.uri) else [f"tracking.uri={tracker.uri}"]


# The store


def _log(
    store: Store, ledgers: Iterable[LedgerRuns], records: Mapping[Path, Heading], say: Say
) -> dict[str, str]:
    """Make the store show both and say what that took. Returns the ids of the experiments by kernel."""
    experiments: dict[str, str] = {}
    began, rows, already = time.monotonic(), 0, 0
    for kernel in sorted({heading.kernel for heading in records.values()}):
        experiments[kernel] = store.experiment(kernel, pages.of_kernel(kernel))
        there = store.settled(experiments[kernel], AD_HOC)
        already += sum(view.ad_hoc_identity(heading) in there for heading in records.values())
        for one in _unsettled(records, kernel, there):
            _show(store, experiments[kernel], one, say)
            _keep_view(store, experiments[kernel], [one])
            rows += one.points
    for one in ledgers:
        kernel = one.parent.params["kernel"]
        if kernel not in experiments:
            experiments[kernel] = store.experiment(kernel, pages.of_kernel(kernel))
        _show(store, experiments[kernel], one, say)
        rows += one.points
    if already:
        say(f"{already} ad-hoc {'sweep was' if already == 1 else 'sweeps were'} published before.")
    seconds = time.monotonic() - began
    if rows:
        say(f"{rows} rows in {seconds:.1f} s, {rows / seconds:.0f} rows/s.")
    return experiments


def _keep_view(store: Store, experiment: str, sweeps: Sequence[LedgerRuns]) -> str:
    """Have the experiment keep the view of ad-hoc sweeps of one kernel: their configurations and, where they
    did not measure the baseline, those of the baseline on the same lines that were measured last on the same
    machine. Returns its key."""
    search = f"tags.kind = 'config' and {sweeps[0].which}"
    beside = _baseline_beside(store, experiment, sweeps)
    if beside or len(sweeps) > 1:
        own = [run for one in sweeps for run, _, _ in store.configurations(experiment, one.which)]
        named = [*beside, *own][:MOST_NAMED]
        search = f"attributes.run_id IN ({', '.join(map(repr, named))})"
    kept = pages.of_sweeps(sweeps, search)
    store.add_tag(experiment, *kept.tag())
    return kept.key


def _baseline_beside(store: Store, experiment: str, sweeps: Sequence[LedgerRuns]) -> list[str]:
    """The runs of the baseline that stand for what the sweeps did not measure of it."""
    of = sweeps[0].parent.params
    children = [run for one in sweeps for run in one.children]
    baseline = pages.baseline(of["kernel"])
    if baseline is None or any(run.params["provider"] == baseline for run in children):
        return []
    on_lines = {_line(run.tags, run.params) for run in children}
    newest: dict[tuple[str, ...], str] = {}
    which = f"params.provider = '{baseline}' and tags.gpu = '{of['gpu']}'"
    for run, tags, params in store.configurations(experiment, which):
        if (line := _line(tags, params)) in on_lines:
            newest.setdefault(line, run)
    return list(newest.values())


def _line(tags: Mapping[str, str], params: Mapping[str, str]) -> tuple[str, ...]:
    """What is the same for runs whose rates may stand side by side."""
    return tags.get("line", ""), params.get("dtype", ""), params.get("cache", "")


def _log_comparisons(store: Store, made: Mapping[Path, Comparison], say: Say) -> tuple[str, ...]:
    """Make the store show comparisons, each linked to the runs of its sides. Returns the experiment's id."""
    if not made:
        return ()
    experiment = store.experiment(COMPARISONS, pages.of_comparisons())
    for path, one in made.items():
        runs_of = {
            f"run_{name}": store.parent_of(one.kernel, one.gpu, side.commit)
            for name, side in (("a", one.a), ("b", one.b))
            if side.commit is not None
        }
        links = {name: run for name, run in runs_of.items() if run is not None}
        _show(store, experiment, view.comparison(one, path, links), say)
    return (experiment,)


def _unsettled(
    records: Mapping[Path, Heading], kernel: str, settled: Mapping[str, str]
) -> Iterator[LedgerRuns]:
    """The kernel's ad-hoc sweeps of which the store lacks anything."""
    left = {
        path: heading
        for path, heading in records.items()
        if heading.kernel == kernel and view.ad_hoc_identity(heading) not in settled
    }
    yield from _shown_of(left, view.warn)


def _newest(records: Mapping[Path, Heading]) -> dict[Path, Heading]:
    """The last of the records; none of none."""
    return dict(list(records.items())[-1:])


def _shown_of(records: Mapping[Path, Heading], warn: Say) -> Iterator[LedgerRuns]:
    """What MLflow shows of the records; of one without a row nothing. ``warn`` hears of rows that are
    skipped."""
    for path, heading in records.items():
        if rows := runs.rows(path, heading, warn):
            yield view.ad_hoc(heading, rows, path)


def _show(store: Store, experiment: str, one: LedgerRuns, say: Say) -> str:
    """Make the store show a ledger or a sweep and say what that took. Returns the parent run's id."""
    count = 1 + len(one.children)
    with Progress(Terminal(), one.parent.name, count) as progress:
        parent, changes = store.publish(experiment, one, tick=lambda: progress.advance(""))
    what = one.parent.name if one.stays else "{kernel} on {gpu}".format(**one.parent.params)
    say(f"{what}: {one.points} points in {count} runs, {_told(changes, count)}.")
    return parent


def _told(changes: Counter[Change], runs: int) -> str:
    """What was done: ``all new``, ``2 updated, 9 unchanged``."""
    done = {name: changes[name] for name in CHANGES if changes[name]}
    if len(done) == 1 and runs in done.values():
        return f"all {next(iter(done))}"
    return ", ".join(f"{count} {name}" for name, count in done.items())
