"""Results and ad-hoc sweeps to MLflow: ``publish`` writes them, ``how_to_open`` says where to look at them.

What the ledgers hold is shown as it is now. What an ad-hoc sweep measured stays as it was first shown. Both
can be made again in an empty store.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import UserError
from pipeline.machine import device
from pipeline.reporting.terminal import Progress, Terminal
from pipeline.store import comparisons, runs
from pipeline.store.comparisons import Comparison
from pipeline.store.credentials import hidden, public, taken_apart
from pipeline.store.runs import Heading
from pipeline.tracking import ledgers, views
from pipeline.tracking.connection import DEFAULT_STORE, TrackerError, is_server, store_uri
from pipeline.tracking.content import RunFamily
from pipeline.tracking.runs import AD_HOC
from pipeline.tracking.store import CHANGES, Change, Store, opened

Say = Callable[[str], None]
Begun = Callable[["Published"], None]

COMPARISONS = "comparisons"
"""The experiment that shows them."""

MOST_NAMED = 400
"""Runs that a view's search names at most; an experiment's tag takes no more."""


@dataclass(frozen=True)
class Tracker:
    """The store as ``tracking=NAME`` and ``tracking.uri=URI`` name it; ``uri`` may hold a password."""

    name: str
    uri: str | None = field(default=None, repr=False)

    @property
    def options(self) -> list[str]:
        """Options that name the same store, without a password: that is for the environment to hold."""
        if self.uri is None:
            return ["tracking=server"] if self.name == "server" else []
        return ["tracking=server"] if self.uri != public(self.uri) else [f"tracking.uri={self.uri}"]


@dataclass(frozen=True)
class Selection:
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
    open; and the options of ``python -m pipeline.publish`` that would write them again."""

    uri: str
    experiments: tuple[str, ...]
    view: str | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What there is to publish: headings of records, ledgers by kernel and machine, and comparisons. Rows are
    read when they are published."""

    sources: Selection
    gpu: str | None
    records: Mapping[Path, Heading]
    ledgers: Collection[tuple[str, str]]
    comparisons: Mapping[Path, Comparison]

    @property
    def kernels(self) -> list[str]:
        """Those of which there are measurements."""
        return sorted({name for name, _ in self.ledgers} | {one.kernel for one in self.records.values()})


def publish(sources: Selection, tracker: Tracker, say: Say) -> Published | None:
    """Make the store show the files; None, after a sentence, when they hold no measurements.

    ``say`` gets sentences for the user. Raises UserError when the input is not there, lacks the kernel, or
    the store can't be used.
    """
    found = find(sources, say)
    return None if found is None else write(found, tracker, say)


def find(sources: Selection, say: Say) -> Found | None:
    """What there is to publish; None, after a sentence, for nothing. Raises UserError when the input is not
    there or lacks the kernel."""
    kernel = sources.kernel
    gpu = None if sources.device is None else device.resolve(sources.device).slug
    records = {
        path: heading
        for path, heading in (runs.records(sources.runs, ledgers.warn) if sources.runs else {}).items()
        if kernel in (None, heading.kernel)
        and gpu in (None, heading.environment.gpu)
        and (sources.ids is None or heading.run in sources.ids)
    }
    there = ledgers.ledgers(sources.input) if sources.input is not None else {}
    chosen = [(name, slug) for name, slug in there if kernel in (None, name) and gpu in (None, slug)]
    if kernel is not None and there and not chosen and not records:
        names = ", ".join(sorted({name for name, _ in there}))
        raise UserError(f"{sources.input} holds no measurements of {kernel}, only of {names}.")
    made = {
        path: one
        for place in dict.fromkeys(filter(None, [sources.input, sources.runs and sources.runs.parent]))
        for path, one in comparisons.load(place, ledgers.warn).items()
        if kernel in (None, one.kernel) and gpu in (None, one.gpu)
    }
    if not chosen and not records and not made:
        place = sources.input or sources.runs
        say(f"{place} holds no measurements yet: nothing to publish. `dvc repro` makes some.")
        return None
    return Found(sources, gpu, records, chosen, made)


def write(found: Found, tracker: Tracker, say: Say, begun: Begun = lambda _: None) -> Published:
    """Make the store show what was found. ``begun`` is called once the store is there, before any run is.

    Raises UserError when the store can't be used.
    """
    uri = store_uri(tracker.name, tracker.uri)
    options = (*found.sources.options, *tracker.options)
    # No path of a server's address is cut: it may be mounted at one.
    shown = taken_apart(uri).uri if is_server(uri) else public(uri)
    try:
        with opened(uri) as store:
            experiments = {
                kernel: store.experiment(kernel, views.of_kernel(kernel)) for kernel in found.kernels
            }
            view = views.BEST if experiments else views.COMPARED
            begun(Published(shown, tuple(experiments.values()), view, options))
            _write_runs(store, experiments, found, say)
            compared = _write_comparisons(store, found.comparisons, say)
            named = {} if found.ledgers else found.records
            if not found.sources.ids:
                named = dict(list(named.items())[-1:])
            if sweeps := list(_ad_hoc(named, warn=lambda _: None)):
                view = _keep_view(store, experiments[sweeps[0].kernel], sweeps)
            return Published(shown, tuple(experiments.values()) or compared, view, options)
    except TrackerError as error:
        again = shlex.join(["python", "-m", "pipeline.publish", *options])
        left_out = tracker.uri is not None and "tracking=server" in options
        how = " set MLFLOW_TRACKING_URI to it and run:" if left_out else " run:"
        places = " and ".join(str(place) for place in (found.sources.input, found.sources.runs) if place)
        raise UserError(
            f"can't publish to {public(uri)}: {hidden(str(error), [uri])}. Nothing measured is lost, "
            f"it lies in {places}; once the store can be used,{how} {again}"
        ) from error


def how_to_open(published: Published) -> str:
    """One line that says where the runs can be seen."""
    uri = published.uri
    if is_server(uri):
        return f"Open {page(published, uri)}"
    command = "make ui"
    if uri != DEFAULT_STORE:
        command = shlex.join(["python", "-m", "pipeline.ui", *published.options])
    return f"Run `{command}` and open {page(published, 'http://127.0.0.1:5000')}"


def page(published: Published, server: str) -> str:
    """Where a server shows what was published."""
    return views.page(server, published.experiments, published.view)


def _write_runs(store: Store, experiments: Mapping[str, str], found: Found, say: Say) -> None:
    """Make the store show ad-hoc sweeps, the newest first, and ledgers."""
    began, rows = time.monotonic(), 0
    settled = {
        kernel: store.settled(experiments[kernel], AD_HOC)
        for kernel in sorted({heading.kernel for heading in found.records.values()})
    }
    left = {
        path: heading
        for path, heading in reversed([*found.records.items()])
        if ledgers.ad_hoc_identity(heading) not in settled[heading.kernel]
    }
    if already := len(found.records) - len(left):
        say(f"{already} ad-hoc {'sweep was' if already == 1 else 'sweeps were'} published before.")
    total = len(found.ledgers) + len(left)
    for number, family in enumerate(_families(found, left), start=1):
        experiment = experiments[family.kernel]
        _write(store, experiment, family, say, f" ({number} of {total})" if total > 1 else "")
        if family.stays:
            _keep_view(store, experiment, [family])
        rows += family.points
    seconds = time.monotonic() - began
    if rows:
        say(f"{rows} rows in {seconds:.1f} s, {rows / seconds:.0f} rows/s.")


def _families(found: Found, records: Mapping[Path, Heading]) -> Iterator[RunFamily]:
    yield from _ad_hoc(records, ledgers.warn)
    sources = found.sources
    if sources.input is not None and found.ledgers:
        yield from ledgers.read(sources.input, sources.kernel, sources.reports, sources.artifacts, found.gpu)


def _ad_hoc(records: Mapping[Path, Heading], warn: Say) -> Iterator[RunFamily]:
    """The runs of the records; of a record without a row none. ``warn`` hears of rows that are skipped."""
    for path, heading in records.items():
        if rows := runs.rows(path, heading, warn):
            yield ledgers.ad_hoc(heading, rows, path)


def _keep_view(store: Store, experiment: str, sweeps: Sequence[RunFamily]) -> str:
    """Have the experiment keep the view of ad-hoc sweeps of one kernel: their configurations and, where they
    did not measure the baseline, those of the baseline on the same lines that were measured last on the same
    machine. Returns its key."""
    search = f"tags.kind = 'config' and {sweeps[0].search}"
    baseline = _baseline_beside(store, experiment, sweeps)
    if baseline or len(sweeps) > 1:
        own = [run for one in sweeps for run, _, _ in store.configurations(experiment, one.search)]
        named = [*baseline, *own][:MOST_NAMED]
        search = f"attributes.run_id IN ({', '.join(map(repr, named))})"
    kept = views.of_sweeps(sweeps, search)
    store.add_tag(experiment, *kept.tag())
    return kept.key


def _baseline_beside(store: Store, experiment: str, sweeps: Sequence[RunFamily]) -> list[str]:
    """The runs of the baseline that stand for what the sweeps did not measure of it."""

    def line(tags: Mapping[str, str], params: Mapping[str, str]) -> tuple[str, ...]:
        """Equal for runs whose rates may stand side by side."""
        return tags.get("line", ""), params.get("dtype", ""), params.get("cache", "")

    children = [run for one in sweeps for run in one.children]
    baseline = views.baseline(sweeps[0].kernel)
    if baseline is None or any(run.params["provider"] == baseline for run in children):
        return []
    wanted = {line(run.tags, run.params) for run in children}
    newest: dict[tuple[str, ...], str] = {}
    search = f"params.provider = '{baseline}' and tags.gpu = '{sweeps[0].parent.params['gpu']}'"
    for run, tags, params in store.configurations(experiment, search):
        if line(tags, params) in wanted:
            newest.setdefault(line(tags, params), run)
    return list(newest.values())


def _write_comparisons(store: Store, made: Mapping[Path, Comparison], say: Say) -> tuple[str, ...]:
    """Make the store show comparisons, each linked to the runs of its sides. Returns the experiment's id."""
    if not made:
        return ()
    experiment = store.experiment(COMPARISONS, views.of_comparisons())
    for path, one in made.items():
        links = {
            f"run_{name}": run
            for name, side in (("a", one.a), ("b", one.b))
            if side.commit and (run := store.parent_of(one.kernel, one.gpu, side.commit))
        }
        _write(store, experiment, ledgers.comparison(one, path, links), say)
    return (experiment,)


def _write(store: Store, experiment: str, family: RunFamily, say: Say, place: str = "") -> None:
    """Make the store show a family of runs and say what that took; ``place`` is that among several."""
    count = 1 + len(family.children)
    with Progress(Terminal(), family.parent.name + place, count) as progress:
        changes = store.publish(experiment, family, tick=lambda: progress.advance(""))
    name = family.parent.name if family.stays else "{kernel} on {gpu}".format(**family.parent.params)
    say(f"{name}: {family.points} points in {count} runs, {_in_words(changes, count)}{place}.")


def _in_words(changes: Counter[Change], runs: int) -> str:
    """The changes: ``all new``, or ``2 updated, 9 unchanged``."""
    done = {name: changes[name] for name in CHANGES if changes[name]}
    if len(done) == 1 and runs in done.values():
        return f"all {next(iter(done))}"
    return ", ".join(f"{count} {name}" for name, count in done.items())
