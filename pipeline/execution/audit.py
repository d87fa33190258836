"""The arithmetic of the audit: which rows are audited, what a try says of a time, when tries are enough.

A try is one span by the supervisor's clock, from the word to go to the last output of many calls on inputs
that were never used before, beside the span of an empty replay: the same messages, copies and loop without
the calls. Nothing in this module measures anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from secrets import choice
from time import perf_counter, sleep
from typing import Literal

from kernel_pipeline.machine.load import Scheduled, Stolen, Threads, scheduled
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point

WORK_US = 10_000.0
"""The work of a try by the time that is audited: fifty times an empty replay on a GPU."""

FEWEST_CALLS = 2
MOST_CALLS = 8192
"""Calls of a try: 10 ms of the shortest kernels on a GPU, which take 0.14 s to capture."""

SHOWN = 4
"""Sets of a try whose outputs are compared, drawn when the last output is written. On a GPU so many have room
in shared memory: the outputs of all lie where the graph has put them, for to copy them would take as long as
many calls do."""

EMPTY_ERROR = 0.25
"""The share of an empty replay by which it may differ from what goes round the calls."""

LAUNCH_US = 200.0
"""The host's time for a launch on a GPU that is timed by events, at most: no graph holds the call, and
between events the device's time alone counts."""

MOST_DELAY = 0.05
"""The share of the time for which the worker's threads may wait for a core in a try that convicts."""

ALL_CORES = 0.9
"""Threads that ran for this share of all cores' time waited for each other, and for nobody else."""

FEWEST_TRIES = 2
"""So many have to be right."""

SERIES = 2
"""Series of tries that all have to say that a time is false: on a CPU whose other core is another's, three
tries in a row took more than twice as long now and then, with nothing to be seen."""

REST_S = 0.5
"""Between two series."""

MOST_OTHERS = 0.25
"""Threads of other programs that run at a moment, over the cores of the host: two that share a core's caches
and arithmetic units slow each other down without waiting."""

REPEATS = 2
"""Times as many tries as a verdict needs may be made where others disturb them."""

LONGEST_US = 2e6
"""Disturbed tries together take no longer: beside other programs threads that meet at a barrier take a
hundred times as long."""

LEAD = 0.98
"""A time below this fraction of the best other one at its problem leads it."""

SHARE = 0.2
"""Audits of points that lead no problem take this share of the time of all points, at most."""

Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Rules:
    """A time is false that is more than ``margin`` below the times that so many ``tries`` saw. In a try a
    call may take ``call_us`` more than a timed one, and all calls together ``start_us`` more than an empty
    replay. A try that is beyond this by less than empty replays differ, up to ``noise_us``, decides
    nothing."""

    tries: int
    margin: float
    call_us: float = 0.0
    start_us: float = 0.0
    noise_us: float = 0.0


RULES: Mapping[Kind, Rules] = {
    "cuda": Rules(tries=3, margin=0.05, start_us=500.0, noise_us=2000.0),
    "cpu": Rules(tries=5, margin=0.25, call_us=1.0),
}
"""From outside a graph's replay is longer than its time by events, by what the host adds, and never shorter:
so the shortest try counts. Medians of three tries of softmax's 24 audited times of 7 to 819 us were 0.1 to
0.5 ms beyond (H100, while others compiled), once 0.9 ms. Beside a test suite on the host's other cores
they were 2 ms beyond, and honest kernels 20 % beyond their times; empty replays took 0.13 to 3 ms. On a CPU
each call's outputs are copied as well, and a set's Python objects are new to the cache: calls of 3 us took up
to 0.8 us more."""


@dataclass(frozen=True)
class Try:
    """One span of so many calls, that of an empty replay, and what disturbed it, None if nothing did. The
    whole try ``took_us``, inputs and comparisons included."""

    span_us: float
    empty_us: float
    calls: int
    disturbed: str | None = None
    took_us: float = 0.0


class Tries:
    """The tries of one audit of a time of ``claimed_us``, in ``all``. ``by_host`` says that the host launches
    each call on a GPU and that only the device's time was claimed."""

    def __init__(self, claimed_us: float, rules: Rules, by_host: bool = False) -> None:
        self.claimed_us = claimed_us
        self.rules = rules
        self.by_host = by_host
        self.all: list[Try] = []

    def add(self, made: Try) -> None:
        """One more."""
        self.all.append(made)

    @property
    def is_false(self) -> bool:
        """Whether all of enough tries are beyond the limit."""
        return len(self._counted) >= self.rules.tries and all(map(self._is_beyond, self._counted))

    @property
    def is_true(self) -> bool:
        """Whether a try is within the limit, for no work can take less than it does; outputs of further ones
        are compared, too."""
        return len(self._counted) >= FEWEST_TRIES and not all(map(self._is_beyond, self._counted))

    @property
    def is_over(self) -> bool:
        """Whether no further try is made."""
        is_late = sum(made.took_us for made in self.all if self._disturbance(made)) > LONGEST_US
        return self.is_false or self.is_true or is_late or len(self.all) >= REPEATS * self.rules.tries

    @property
    def us(self) -> float:
        """Microseconds of a call as seen from outside, at least."""
        return min(self._work_us(made) / made.calls for made in self._counted)

    @property
    def ratio(self) -> float:
        """The same over the time that is audited."""
        return self.us / self.claimed_us

    @property
    def disturbed(self) -> str:
        """The disturbance of the last try that had one."""
        seen = (self._disturbance(made) for made in reversed(self.all))
        return next(found for found in seen if found is not None)

    @property
    def _counted(self) -> list[Try]:
        """A disturbed try that took too long says nothing; one that did not shows all the more that the time
        is possible."""
        return [made for made in self.all if self._disturbance(made) is None or not self._is_beyond(made)]

    def _disturbance(self, made: Try) -> str | None:
        if made.disturbed is None and self._is_beyond(made) and not self._is_beyond(made, self._noise_us):
            return f"empty replays differed by {self._noise_us / 1e3:.1f} ms"
        return made.disturbed

    @property
    def _noise_us(self) -> float:
        return min(self.rules.noise_us, max(made.empty_us for made in self.all) - self._empty_us)

    @property
    def _empty_us(self) -> float:
        """The least of all: what disturbs an empty replay is no part of the others."""
        return min(made.empty_us for made in self.all)

    def _work_us(self, made: Try) -> float:
        return max(0.0, made.span_us - self._empty_us)

    def _is_beyond(self, made: Try, noise_us: float = 0.0) -> bool:
        allowance_us = self.rules.call_us + LAUNCH_US * self.by_host
        a_call = self.claimed_us / (1 - self.rules.margin) + allowance_us
        more_us = self.rules.start_us + EMPTY_ERROR * self._empty_us + noise_us
        return self._work_us(made) > made.calls * a_call + more_us


def calls_for(claimed_us: float) -> int:
    """Calls of a try."""
    return min(MOST_CALLS, max(FEWEST_CALLS, ceil(WORK_US / max(claimed_us, 1e-3))))


@dataclass(frozen=True)
class Sight:
    """What can be seen of a worker and its device from outside at a moment, in microseconds of a clock: its
    threads; those of other programs that run, over the host's cores; what the host of a virtual machine took;
    what holds a GPU back; other processes on it."""

    at_us: float
    threads: Threads = field(default_factory=dict)
    others: float = 0.0
    stolen: Stolen = field(default_factory=Stolen)
    throttle: str | None = None
    neighbours: int = 0


@dataclass(frozen=True)
class Outside:
    """What this process sees of a worker that may use so many ``cores``, its clock, which counts seconds, and
    how it lets some pass."""

    look: Callable[[], Sight]
    cores: int
    clock: Callable[[], float] = perf_counter
    rest: Callable[[float], None] = sleep


def disturbance(before: Sight, after: Sight, cores: int) -> str | None:
    """What makes a try between two sights too long, None if nothing that can be seen does. Threads that wait
    for a core which the worker itself has, are the provider's own."""
    had = scheduled(before.threads, after.threads)
    is_alone = had.ran_us >= ALL_CORES * cores * (after.at_us - before.at_us)
    if had.delay > MOST_DELAY and not is_alone:
        return "other programs had its cores"
    if max(before.others, after.others) > MOST_OTHERS:
        return "other programs ran beside it"
    if after.stolen.since(before.stolen).ticks:
        return "the host of this virtual machine had its cores"
    if throttle := after.throttle or before.throttle:
        return f"the GPU was held back: {throttle}"
    if before.neighbours or after.neighbours:
        return "another process computed on the GPU"
    return None


def ahead_us(before: Sight, after: Sight) -> float:
    """For how long a worker that nobody had asked for anything ran, by its busiest thread: of several that
    wait for work, each may spin a little. A thread that the first look has missed ran no longer than that."""
    most_us = after.at_us - before.at_us
    each = ((one, before.threads.get(thread, Scheduled())) for thread, one in after.threads.items())
    return min(most_us, max((one.ran_us - then.ran_us for one, then in each), default=0.0))


class Audited:
    """Which rows of one device are audited: each provider's first time, what leads its problem, and while
    there is time for it each provider's best at each problem."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._best: dict[tuple[str, Values], dict[str, float]] = {}
        self._all_s = self._audits_s = 0.0

    def wants(self, where: str, point: Point, median_us: float) -> bool:
        """Whether a time is worth an audit."""
        if (where, point.provider) not in self._known:
            return True
        best = self._best.get((where, point.problem), {})
        if median_us >= best.get(point.provider, float("inf")):
            return False
        others = (us for name, us in best.items() if name != point.provider)
        return median_us < LEAD * min(others, default=float("inf")) or self._has_time

    def add(self, where: str, point: Point, median_us: float) -> None:
        """A time was measured, and is true as far as anyone knows."""
        self._known.add((where, point.provider))
        best = self._best.setdefault((where, point.problem), {})
        best[point.provider] = min(median_us, best.get(point.provider, median_us))

    def took(self, all_s: float, audit_s: float) -> None:
        """A point took so many seconds, and of these its audit."""
        self._all_s += all_s
        self._audits_s += audit_s

    @property
    def _has_time(self) -> bool:
        return self._audits_s <= SHARE * self._all_s


def drawn(points: Iterable[Point], workloads: Mapping[Point, str]) -> frozenset[Point]:
    """One point at random of each provider and workload: nobody can tell before which are audited."""

    def group(point: Point) -> tuple[str, str]:
        return point.provider, workloads[point]

    return frozenset(choice(list(found)) for _, found in groupby(sorted(points, key=group), group))
