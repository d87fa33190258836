"""The arithmetic of the audit: which rows are audited, and how tries decide whether a time is true.

A try is one span by the supervisor's clock: from the request to the last output of many calls on inputs that
were never used before. It is compared with the span of an empty replay: the same messages, copies and loop
without the calls. This module measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from secrets import choice
from time import perf_counter, sleep
from typing import Literal

from ..machine.load import Scheduled, Stolen, Threads, scheduled
from ..records.base import Values
from ..records.point import Point

WORK_US = 10_000.0
"""The work of a try if the audited time is true: fifty times an empty replay on a GPU."""

FEWEST_CALLS = 2
MOST_CALLS = 8192
"""The minimum and maximum number of calls of a try. The maximum is 10 ms of the shortest kernels on a GPU,
and takes 0.14 s to capture."""

SHOWN = 4
"""The sets of a try whose outputs are compared, drawn after the last output is written. On a GPU only these
have room in shared memory. All outputs stay where the graph has put them, because a copy would take as long
as many calls."""

EMPTY_ERROR = 0.25
"""The share of an empty replay by which it may differ from the overhead of a try."""

LAUNCH_US = 200.0
"""The maximum time of the host for a launch on a GPU that is timed by events. No graph holds such a call, and
events measure only the device's time."""

MOST_DELAY = 0.05
"""The share of the time that the worker's threads may wait for a core. A slow try beyond it does not
count."""

ALL_CORES = 0.9
"""If the worker's threads ran for this share of all cores' time, they waited for each other only."""

FEWEST_TRIES = 2
"""The minimum number of tries after which a time can be true; the outputs of each have to be right."""

SERIES = 2
"""The series of tries that all have to say that a time is false. On a CPU of two cores, one used by another
program, three tries in a row sometimes took more than twice as long without any visible cause."""

REST_S = 0.5
"""The pause between two series."""

MOST_OTHERS = 0.25
"""The maximum number of running threads of other programs, divided by the host's cores. Two threads that
share a core's caches and arithmetic units slow each other down without waiting."""

REPEATS = 2
"""The maximum number of tries if other programs disturb them, as a multiple of the tries that a verdict
needs."""

LONGEST_US = 2e6
"""The maximum time of all disturbed tries together. Beside other programs, threads that meet at a barrier
take a hundred times as long."""

LEAD = 0.98
"""A time leads its problem if it is below this fraction of the best time of any other provider."""

SHARE = 0.2
"""Points that lead no problem are audited while audits took at most this share of the time of all points."""

Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Rules:
    """The limits of an audit.

    A time is false if it is more than ``margin`` below the times of all of ``tries`` tries. In a try a call
    may take ``call_us`` longer than a timed call, and all calls together ``start_us`` longer than an empty
    replay. A try decides nothing if it exceeds this limit by less than the spread of the empty replays, up to
    ``noise_us``.
    """

    tries: int
    margin: float
    call_us: float = 0.0
    start_us: float = 0.0
    noise_us: float = 0.0


RULES: Mapping[Kind, Rules] = {
    "cuda": Rules(tries=3, margin=0.05, start_us=500.0, noise_us=2000.0),
    "cpu": Rules(tries=5, margin=0.25, call_us=1.0, start_us=1000.0),
}
"""By the supervisor's clock a graph's replay takes longer than by events, because of the host, and never
shorter: so the shortest try counts. On an H100, while other programs compiled, medians of three tries
exceeded softmax's 24 audited times, of 7 to 819 us, by 0.1 to 0.5 ms, once by 0.9 ms. Beside a test suite on
the host's other cores they exceeded them by 2 ms, and honest kernels took 20 % longer; empty replays took
0.13 to 3 ms. On a CPU each call's outputs are copied as well, and a set's Python objects are not in the
cache: calls of 3 us took up to 0.8 us more. The first calls after the worker has waited take longer: its
threads sleep, and caches and clocks are cold. On two cores of a Xeon six calls of 86 us took 0.8 ms more in
each of 30 tries, and 46 calls of 64 us 1.2 ms more."""


@dataclass(frozen=True)
class Try:
    """The span of ``calls`` calls, and the span of an empty replay.

    ``disturbed`` says what disturbed the try, or is None. ``took_us`` is the time of the whole try, with
    inputs and comparisons.
    """

    span_us: float
    empty_us: float
    calls: int
    disturbed: str | None = None
    took_us: float = 0.0


class Tries:
    """The tries of one audit of a time of ``claimed_us``, listed in ``all``.

    ``by_host`` says that the host launches each call on a GPU, while the claimed time is the device's only.
    """

    def __init__(self, claimed_us: float, rules: Rules, by_host: bool = False) -> None:
        self.claimed_us = claimed_us
        self.rules = rules
        self.by_host = by_host
        self.all: list[Try] = []

    def add(self, made: Try) -> None:
        """Add a try."""
        self.all.append(made)

    @property
    def is_false(self) -> bool:
        """Whether enough tries count and all of them are beyond the limit."""
        return len(self._counted) >= self.rules.tries and all(map(self._is_beyond, self._counted))

    @property
    def is_true(self) -> bool:
        """Whether enough tries count and one of them is within the limit.

        One such try is sufficient, since no disturbance makes work shorter. Further tries are made to compare
        more outputs.
        """
        return len(self._counted) >= FEWEST_TRIES and not all(map(self._is_beyond, self._counted))

    @property
    def is_over(self) -> bool:
        """Whether no further try is made."""
        is_late = sum(made.took_us for made in self.all if self._disturbance(made)) > LONGEST_US
        return self.is_false or self.is_true or is_late or len(self.all) >= REPEATS * self.rules.tries

    @property
    def us(self) -> float:
        """The shortest time of a call by the supervisor's clock, in microseconds."""
        return min(self._work_us(made) / made.calls for made in self._counted)

    @property
    def ratio(self) -> float:
        """``us`` divided by the audited time."""
        return self.us / self.claimed_us

    @property
    def disturbed(self) -> str:
        """The disturbance of the last try that had one."""
        seen = (self._disturbance(made) for made in reversed(self.all))
        return next(found for found in seen if found is not None)

    @property
    def _counted(self) -> list[Try]:
        """The tries that count: all except disturbed tries beyond the limit.

        A disturbed try within the limit shows all the more that the time is possible.
        """
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
        """The shortest empty replay: a disturbance of one does not affect the others."""
        return min(made.empty_us for made in self.all)

    def _work_us(self, made: Try) -> float:
        return max(0.0, made.span_us - self._empty_us)

    def _is_beyond(self, made: Try, noise_us: float = 0.0) -> bool:
        allowance_us = self.rules.call_us + LAUNCH_US * self.by_host
        a_call = self.claimed_us / (1 - self.rules.margin) + allowance_us
        more_us = self.rules.start_us + EMPTY_ERROR * self._empty_us + noise_us
        return self._work_us(made) > made.calls * a_call + more_us


def calls_for(claimed_us: float) -> int:
    """Return the number of calls of a try."""
    return min(MOST_CALLS, max(FEWEST_CALLS, ceil(WORK_US / max(claimed_us, 1e-3))))


@dataclass(frozen=True)
class Sight:
    """The state of a worker and its device at a moment, as the supervisor sees it.

    ``at_us`` is the clock's time in microseconds, ``threads`` are the worker's threads. ``others`` are the
    running threads of other programs divided by the host's cores, ``stolen`` is the time that the host of a
    virtual machine took. ``throttle`` is the reason of the device's lower clocks, ``neighbours`` the number
    of other processes on the device.
    """

    at_us: float
    threads: Threads = field(default_factory=dict)
    others: float = 0.0
    stolen: Stolen = field(default_factory=Stolen)
    throttle: str | None = None
    neighbours: int = 0


@dataclass(frozen=True)
class Outside:
    """The supervisor's view of a worker that may use ``cores`` cores.

    ``look`` returns a sight of the current state, ``clock`` is its clock in seconds, ``rest`` waits for
    seconds.
    """

    look: Callable[[], Sight]
    cores: int
    clock: Callable[[], float] = perf_counter
    rest: Callable[[float], None] = sleep


def disturbance(before: Sight, after: Sight, cores: int) -> str | None:
    """Return the disturbance that made a try between two sights too long, or None if no disturbance is
    visible.

    A wait for a core that the worker's other threads use is not a disturbance.
    """
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
    """Return the microseconds that the busiest thread of an idle worker ran between two readings of its
    threads.

    Only the busiest thread counts, since several idle threads may each spin a little. The result is at most
    the time between the readings, because a thread that only the second reading lists can't have run for
    longer.
    """
    most_us = after.at_us - before.at_us
    each = ((one, before.threads.get(thread, Scheduled())) for thread, one in after.threads.items())
    return min(most_us, max((one.ran_us - then.ran_us for one, then in each), default=0.0))


class Audited:
    """Decides which rows of one device are audited.

    These are each provider's first time, times that lead their problem, and, while there is time for it, each
    provider's best at each problem.
    """

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
        """Record a time that was measured and not found false."""
        self._known.add((where, point.provider))
        best = self._best.setdefault((where, point.problem), {})
        best[point.provider] = min(median_us, best.get(point.provider, median_us))

    def took(self, all_s: float, audit_s: float) -> None:
        """Record the seconds of a point, and how many of them its audit took."""
        self._all_s += all_s
        self._audits_s += audit_s

    @property
    def _has_time(self) -> bool:
        return self._audits_s <= SHARE * self._all_s


def drawn(points: Iterable[Point], workloads: Mapping[Point, str]) -> frozenset[Point]:
    """Draw one point of each provider and workload, so that nobody can know in advance which are audited."""

    def group(point: Point) -> tuple[str, str]:
        return point.provider, workloads[point]

    return frozenset(choice(list(found)) for _, found in groupby(sorted(points, key=group), group))
