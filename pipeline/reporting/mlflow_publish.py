"""Results and ad-hoc sweeps to MLflow: ``publish`` writes them, ``how_to_open`` says where to look at them.

What the ledgers hold is shown as it is now. What an ad-hoc sweep measured stays as it was first shown. Both
can be made again in an empty store.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from pathlib import Path

from pipeline import UserError
from pipeline.machine import device
from pipeline.reporting import mlflow_address
from pipeline.reporting import mlflow_pages as pages
from pipeline.reporting import mlflow_view as view
from pipeline.reporting.mlflow_asked import Files, Marks, Tracker
from pipeline.reporting.mlflow_connection import HeldError, TrackerError
from pipeline.reporting.mlflow_content import LedgerRuns
from pipeline.reporting.mlflow_runs import AD_HOC
from pipeline.reporting.mlflow_store import CHANGES, Change, Store, opened
from pipeline.reporting.terminal import Progress, Terminal
from pipeline.store import comparisons, runs
from pipeline.store.comparisons import Comparison
from pipeline.store.credentials import hidden, public, taken_apart
from pipeline.store.runs import Heading

Say = Callable[[str], None]
Begun = Callable[["Published"], None]

COMPARISONS = "comparisons"
"""The experiment that shows them."""


MOST_NAMED = 400
"""Runs that a view's search names at most; an experiment's tag takes no more."""


@dataclass(frozen=True)
class Published:
    """The store that shows the files, without credentials; the ids of the experiments that do; the view to
    open where it is one; and the options of ``python -m pipeline.publish`` that would write them again."""

    uri: str
    experiments: tuple[str, ...]
    view: str | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What there is of what is to be published: headings of records, ledgers by kernel and machine, and
    comparisons. Rows are read when they are published."""

    files: Files
    gpu: str | None
    records: Mapping[Path, Heading]
    ledgers: Collection[tuple[str, str]]
    comparisons: Mapping[Path, Comparison]

    @property
    def kernels(self) -> list[str]:
        """Those of which there are measurements."""
        return sorted({name for name, _ in self.ledgers} | {one.kernel for one in self.records.values()})

    def shown(self) -> Iterator[LedgerRuns]:
        """The ledgers as MLflow shows them."""
        files = self.files
        if files.input is None or not self.ledgers:
            return iter(())
        return view.read(files.input, files.kernel, files.reports, files.artifacts, self.gpu)


def publish(files: Files, tracker: Tracker, say: Say) -> Published | None:
    """Make the store show the files; None, after a sentence, when they hold no measurements.

    ``say`` gets sentences for the user. Raises UserError when the input is not there, lacks the kernel, or
    the store can't be used.
    """
    found = look(files, say)
    return None if found is None else write(found, tracker, say)


def look(files: Files, say: Say) -> Found | None:
    """What there is to publish; None, after a sentence, for nothing. Raises UserError when the input is not
    there or lacks the kernel."""
    gpu = None if files.device is None else device.resolve(files.device).slug
    records = {
        path: heading
        for path, heading in (runs.records(files.runs, view.warn) if files.runs else {}).items()
        if files.kernel in (None, heading.kernel)
        and gpu in (None, heading.environment.gpu)
        and (files.ids is None or heading.run in files.ids)
    }
    there = view.ledgers(files.input) if files.input is not None else {}
    ledgers = [one for one in there if files.kernel in (None, one[0]) and gpu in (None, one[1])]
    if files.kernel is not None and there and not ledgers and not records:
        names = ", ".join(sorted({name for name, _ in there}))
        raise UserError(f"{files.input} holds no measurements of {files.kernel}, only of {names}.")
    made = {
        path: one
        for place in dict.fromkeys(filter(None, [files.input, files.runs and files.runs.parent]))
        for path, one in comparisons.load(place, view.warn).items()
        if files.kernel in (None, one.kernel) and gpu in (None, one.gpu)
    }
    if not ledgers and not records and not made:
        place = files.input or files.runs
        say(f"{place} holds no measurements yet: nothing to publish. `dvc repro` makes some.")
        return None
    return Found(files, gpu, records, ledgers, made)


def write(found: Found, tracker: Tracker, say: Say, begun: Begun = lambda _: None) -> Published:
    """Make the store show what was found. ``begun`` is called once the store is there, before any run is.

    Where another process publishes to the same SQLite store, that one publishes this, too, and only a
    sentence is said. Raises UserError when the store can't be used.
    """
    chosen = mlflow_address.store_of(tracker.name, tracker.uri)
    options = (*found.files.options, *_options(tracker))
    try:
        return _in_turn(found, chosen, options, say, begun)
    except TrackerError as error:
        again = shlex.join(["python", "-m", "pipeline.publish", *options])
        unsaid = tracker.uri is not None and "tracking=server" in options
        how = " set MLFLOW_TRACKING_URI to it and run:" if unsaid else " run:"
        places = " and ".join(str(place) for place in (found.files.input, found.files.runs) if place)
        raise UserError(
            f"can't publish to {public(chosen)}: {hidden(str(error), [chosen])}. Nothing measured is lost, "
            f"it lies in {places}; once the store can be used,{how} {again}"
        ) from error


def _in_turn(found: Found, chosen: str, options: tuple[str, ...], say: Say, begun: Begun) -> Published:
    """Write what was found and what others leave meanwhile, or leave it to who writes just now.

    No mark is missed: who writes looks for marks again once others can write, and who has left a mark tries
    to write once more.
    """
    marks = Marks(mlflow_address.sqlite_path(chosen))
    published: Published | None = None
    mark: Path | None = None
    while True:
        try:
            with opened(chosen) as store:
                if mark is not None:
                    mark.unlink(missing_ok=True)
                if published is None:
                    published = Published(_kept(chosen), *_all_of(store, found, say, begun), options)
                for files in marks.taken():
                    _left_by_another(store, files, say)
        except HeldError:
            if published is not None:
                return published
            if mark is not None:
                say(f"Another publish writes to {public(chosen)}; it publishes this, too.")
                begun(published := Published(_kept(chosen), (), None, options))
                return published
            mark = marks.leave(found.files)
        else:
            if not marks.all():
                return published


def _left_by_another(store: Store, files: Files, say: Say) -> None:
    try:
        found = look(files, say)
    except UserError as error:
        view.warn(f"what another publish left is not there any more: {error}")
        return
    if found is not None:
        say(f"What another publish left: {' '.join(files.options)}")
        _all_of(store, found, say)


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


def _all_of(
    store: Store, found: Found, say: Say, begun: Begun = lambda _: None
) -> tuple[tuple[str, ...], str | None]:
    """Make the store show what was found. Returns the ids of the experiments, and the view to open."""
    experiments = {kernel: store.experiment(kernel, pages.of_kernel(kernel)) for kernel in found.kernels}
    shown = pages.BEST if experiments else pages.COMPARED
    begun(Published(_kept(store.uri), tuple(experiments.values()), shown))
    _log(store, experiments, found, say)
    compared = _log_comparisons(store, found.comparisons, say)
    asked = {} if found.ledgers else found.records if found.files.ids else _newest(found.records)
    if sweeps := list(_shown_of(asked, warn=lambda _: None)):
        shown = _keep_view(store, experiments[sweeps[0].parent.params["kernel"]], sweeps)
    return tuple(experiments.values()) or compared, shown


def _log(store: Store, experiments: Mapping[str, str], found: Found, say: Say) -> None:
    """Make the store show ledgers and records, about the newest first, and say what that took."""
    began, rows = time.monotonic(), 0
    settled = {
        kernel: store.settled(experiments[kernel], AD_HOC)
        for kernel in sorted({heading.kernel for heading in found.records.values()})
    }
    left = {
        path: heading
        for path, heading in reversed([*found.records.items()])
        if view.ad_hoc_identity(heading) not in settled[heading.kernel]
    }
    if already := len(found.records) - len(left):
        say(f"{already} ad-hoc {'sweep was' if already == 1 else 'sweeps were'} published before.")
    total = len(found.ledgers) + len(left)
    newest = merge(
        found.shown(), _shown_of(left, view.warn), key=lambda one: one.parent.ended_ms, reverse=True
    )
    for number, one in enumerate(newest, start=1):
        experiment = experiments[one.parent.params["kernel"]]
        _show(store, experiment, one, say, f" ({number} of {total})" if total > 1 else "")
        if one.stays:
            _keep_view(store, experiment, [one])
        rows += one.points
    seconds = time.monotonic() - began
    if rows:
        say(f"{rows} rows in {seconds:.1f} s, {rows / seconds:.0f} rows/s.")


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


def _newest(records: Mapping[Path, Heading]) -> dict[Path, Heading]:
    """The last of the records; none of none."""
    return dict(list(records.items())[-1:])


def _shown_of(records: Mapping[Path, Heading], warn: Say) -> Iterator[LedgerRuns]:
    """What MLflow shows of the records; of one without a row nothing. ``warn`` hears of rows that are
    skipped."""
    for path, heading in records.items():
        if rows := runs.rows(path, heading, warn):
            yield view.ad_hoc(heading, rows, path)


def _show(store: Store, experiment: str, one: LedgerRuns, say: Say, place: str = "") -> None:
    """Make the store show a ledger or a sweep and say what that took; ``place`` is that among several."""
    count = 1 + len(one.children)
    with Progress(Terminal(), one.parent.name + place, count) as progress:
        changes = store.publish(experiment, one, tick=lambda: progress.advance(""))
    what = one.parent.name if one.stays else "{kernel} on {gpu}".format(**one.parent.params)
    say(f"{what}: {one.points} points in {count} runs, {_told(changes, count)}{place}.")


def _told(changes: Counter[Change], runs: int) -> str:
    """What was done: ``all new``, ``2 updated, 9 unchanged``."""
    done = {name: changes[name] for name in CHANGES if changes[name]}
    if len(done) == 1 and runs in done.values():
        return f"all {next(iter(done))}"
    return ", ".join(f"{count} {name}" for name, count in done.items())
