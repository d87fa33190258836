"""Publish results, ad-hoc sweeps and comparisons to MLflow. ``publish`` writes them, ``how_to_open`` returns
their link.

Publishing again updates the runs of a ledger to its rows. The runs of an ad-hoc sweep stay as they were first
published. Both can be written again to an empty store.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.records.credentials import hidden, public, taken_apart

from .. import as_typed
from ..reporting.terminal import Progress, Terminal
from ..store import comparisons, runs
from ..store.comparisons import Comparison
from ..store.runs import Heading
from . import ledgers, views
from .connection import DEFAULT_STORE, TrackerError, is_server, store_uri
from .mlflow_runs import AD_HOC
from .run_families import RunFamily
from .store import CHANGES, Change, Store, opened

Say = Callable[[str], None]
Begun = Callable[["Published"], None]

COMPARISONS = "comparisons"
"""The name of the experiment that holds comparisons."""


@dataclass(frozen=True)
class Tracker:
    """The store that ``tracking=NAME`` and ``tracking.uri=URI`` name. ``uri`` may hold a password."""

    name: str
    uri: str | None = field(default=None, repr=False)

    @property
    def options(self) -> list[str]:
        """Options that name the same store without its password, which belongs in the environment."""
        if self.uri is None:
            return ["tracking=server"] if self.name == "server" else []
        return ["tracking=server"] if self.uri != public(self.uri) else [f"tracking.uri={self.uri}"]


@dataclass(frozen=True)
class Selection:
    """The files to publish: ledgers below ``input`` with ``reports`` and ``artifacts``, records of ad-hoc
    sweeps in ``runs``, and the comparisons below ``input`` and beside ``runs``.

    A folder of None leaves its files out. ``kernel``, ``device`` and ``ids`` of None select every kernel,
    every machine and every record."""

    input: Path | None = None
    runs: Path | None = None
    kernel: str | None = None
    reports: Path | None = None
    artifacts: Path | None = None
    ids: frozenset[str] | None = None
    device: str | None = None

    @property
    def options(self) -> list[str]:
        """The options of ``python -m pipeline.publish`` that select these files."""
        words = {"input": self.input, "runs": self.runs, "kernel": self.kernel}
        words |= {"reports": self.reports, "artifacts": self.artifacts, "device": self.device}
        return [
            f"{name}={'null' if value is None else value}"
            for name, value in words.items()
            if name not in ("kernel", "device") or value is not None
        ]


@dataclass(frozen=True)
class Published:
    """The result of publishing. ``uri`` is the store without credentials, ``experiments`` are ids, and the
    link opens ``view`` or ``search``. ``options`` make ``python -m pipeline.publish`` write the same
    again."""

    uri: str
    experiments: tuple[str, ...]
    view: str | None = None
    search: str | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """The files that a selection found: headings of records, ledgers by (kernel, machine), and comparisons.
    Rows are read later, while they are published."""

    sources: Selection
    gpu: str | None
    records: Mapping[Path, Heading]
    ledgers: Collection[tuple[str, str]]
    comparisons: Mapping[Path, Comparison]

    @property
    def kernels(self) -> list[str]:
        """The kernels with measurements."""
        return sorted({name for name, _ in self.ledgers} | {one.kernel for one in self.records.values()})


def publish(sources: Selection, tracker: Tracker, say: Say) -> None:
    """Write the files to the store, and say how to open the runs, or that the files hold no measurements.

    ``say`` prints a sentence for the user. Raises UserError if the input is missing or lacks the kernel, or
    if the store can't be used.
    """
    found = find(sources, say)
    if found is not None:
        say(how_to_open(write(found, tracker, say)))


def find(sources: Selection, say: Say) -> Found | None:
    """Find the files of a selection. Returns None, after telling the user, if there are none. Raises
    UserError if the input is missing or lacks the kernel."""
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
    """Write the found files to the store. ``begun`` is called when the experiments exist, before any run is
    written. Raises UserError if the store can't be used.
    """
    uri = store_uri(tracker.name, tracker.uri)
    options = (*found.sources.options, *tracker.options)
    # Keep a server's whole address: it may be mounted at a path.
    shown = taken_apart(uri).uri if is_server(uri) else public(uri)
    try:
        with opened(uri) as store:
            experiments = {
                kernel: store.experiment(kernel, views.of_kernel(kernel)) for kernel in found.kernels
            }
            view = views.BEST if experiments else views.COMPARED
            begun(Published(shown, tuple(experiments.values()), view, None, options))
            _write_runs(store, experiments, found, say)
            compared = _write_comparisons(store, found.comparisons, say)
            newest = None if found.ledgers else next(reversed([*found.records.values()]), None)
            search = None if newest is None else f"tags.kind = 'config' and tags.run = '{newest.run}'"
            return Published(shown, tuple(experiments.values()) or compared, view, search, options)
    except TrackerError as error:
        again = as_typed("publish", *options)
        left_out = tracker.uri is not None and "tracking=server" in options
        how = " set MLFLOW_TRACKING_URI to it and run:" if left_out else " run:"
        places = " and ".join(str(place) for place in (found.sources.input, found.sources.runs) if place)
        raise UserError(
            f"can't publish to {public(uri)}: {hidden(str(error), [uri])}. Nothing measured is lost: "
            f"the results are in {places}. Once the store can be used,{how} {again}"
        ) from error


def how_to_open(published: Published) -> str:
    """Return one line on how to open the runs."""
    uri = published.uri
    if is_server(uri):
        return f"Open {page(published, uri)}"
    command = "make ui"
    if uri != DEFAULT_STORE:
        command = as_typed("ui", *published.options)
    return f"Run `{command}` and open {page(published, 'http://127.0.0.1:5000')}"


def page(published: Published, server: str) -> str:
    """Return the link to the runs on a server."""
    return views.page(server, published.experiments, published.view, published.search)


def _write_runs(store: Store, experiments: Mapping[str, str], found: Found, say: Say) -> None:
    """Write the ad-hoc sweeps, newest first, then the ledgers."""
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
        _write(store, experiments[family.kernel], family, say, f" ({number} of {total})" if total > 1 else "")
        rows += family.points
    seconds = time.monotonic() - began
    if rows:
        say(f"{rows} rows in {seconds:.1f} s, {rows / seconds:.0f} rows/s.")


def _families(found: Found, records: Mapping[Path, Heading]) -> Iterator[RunFamily]:
    for path, heading in records.items():
        if rows := runs.rows(path, heading, ledgers.warn):
            yield ledgers.ad_hoc(heading, rows, path)
    sources = found.sources
    if sources.input is not None and found.ledgers:
        yield from ledgers.read(sources.input, sources.kernel, sources.reports, sources.artifacts, found.gpu)


def _write_comparisons(store: Store, made: Mapping[Path, Comparison], say: Say) -> tuple[str, ...]:
    """Write the comparisons and link each to the runs of its sides, unless these are environments. Returns
    the experiment's id in a tuple, which is empty without comparisons."""
    if not made:
        return ()
    experiment = store.experiment(COMPARISONS, views.of_comparisons())
    for path, one in made.items():
        links = {
            f"run_{name}": run
            for name, side in (("a", one.a), ("b", one.b))
            if side.commit
            and not side.packages
            and (run := store.parent_of(one.kernel, one.gpu, side.commit))
        }
        _write(store, experiment, ledgers.comparison(one, path, links), say)
    return (experiment,)


def _write(store: Store, experiment: str, family: RunFamily, say: Say, place: str = "") -> None:
    """Write a family of runs and report the changes. ``place`` is a suffix such as `` (2 of 5)``."""
    count = 1 + len(family.children)
    with Progress(Terminal(), family.parent.name + place, count) as progress:
        changes = store.publish(experiment, family, tick=lambda: progress.advance(""))
    name = family.parent.name if family.stays else "{kernel} on {gpu}".format(**family.parent.params)
    say(f"{name}: {family.points} points in {count} runs, {_in_words(changes, count)}{place}.")


def _in_words(changes: Counter[Change], runs: int) -> str:
    """Return the changes in words: ``all new``, or ``2 updated, 9 unchanged``."""
    done = {name: changes[name] for name in CHANGES if changes[name]}
    if len(done) == 1 and runs in done.values():
        return f"all {next(iter(done))}"
    return ", ".join(f"{count} {name}" for name, count in done.items())
