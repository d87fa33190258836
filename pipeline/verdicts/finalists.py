"""Choose the finalists: each provider's configuration that was the fastest in any sweep. A first look takes
only the providers that were near the fastest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kernel_pipeline import problems
from kernel_pipeline.contract import Gpu, Work
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings, rate
from kernel_pipeline.records.measurement import Measurement, noise_class

from .. import ROOT
from ..keys.identity import Identity
from ..points import choice, notation
from ..points.catalog import Entry
from ..points.plan import Plan
from ..store.finals import By, How, written_by
from .dispatch import Caller, Dispatched
from .rounds import Candidate, Match, Side

TREE = "tree"
"""The name of the only side: all finalists are of this repository."""


class NobodyError(Exception):
    """Raised if a kernel has no finalists. The text is a clause that says why. ``elsewhere``: the ledger has
    times at problems without finals in this preset."""

    def __init__(self, why: str, *, elsewhere: bool) -> None:
        super().__init__(why)
        self.elsewhere = elsewhere


@dataclass(frozen=True)
class Finalists:
    """The best configuration of each provider at one problem of a kernel, and the configuration that a caller
    gets. ``rows`` holds their rows by candidate: own providers first, each group from fast to slow."""

    entry: Entry
    match: Match
    rows: Mapping[Candidate, Measurement]
    dispatched: Dispatched | None = None

    def how(self, candidate: Candidate) -> How | None:
        """Return the way in which a caller gets a candidate; None for a candidate that callers don't get."""
        is_it = self.dispatched is not None and self.dispatched.row.point == candidate.point
        return self.dispatched.how if self.dispatched is not None and is_it else None

    @property
    def work(self) -> Work:
        """The work of the finalists' problem."""
        return _work(self.entry, self.match.candidates[0].point.problem)

    def by(self, candidate: Candidate) -> By:
        """Return the author of a candidate's provider."""
        return written_by(self.entry.loaded.kernel.provider(candidate.point.provider))

    def power_limited(self, ceilings: Ceilings) -> list[Candidate]:
        """Return the candidates that a GPU's power limit may slow down and that are worth seconds of
        measuring: the baseline, the best own provider and the best peer. Returns none unless compute bounds
        the problem."""
        if rate(1.0, self.work, ceilings).bound != "compute":
            return []
        candidates, baseline = self.match.candidates, self.entry.loaded.kernel.baseline
        chosen = [candidate for candidate in candidates if candidate.point.provider == baseline]
        for who in ("own", "peer"):
            # Candidates of one kind are in the order of the sweep's times.
            chosen += [candidate for candidate in candidates if self.by(candidate) == who][:1]
        return chosen


def of_ledger(
    entry: Entry,
    wanted: Plan,
    closer: Literal["all", "largest"],
    rows: Iterable[Measurement],
    identity: Identity,
    ceilings: Ceilings,
    gpu: Gpu | None = None,
    near: float | None = None,
) -> list[Finalists]:
    """Return the finalists of a kernel at the problems of a plan, by its ledger's rows.

    Only rows at the problems of the plan count; their configurations may come from any sweep. ``near`` leaves
    out a provider that took more than ``near`` times as long as the fastest of its kind. The
    baseline, the configuration that a caller gets and untrusted times are never left out. Raises NobodyError
    if there are no finalists.
    """
    rows = list(rows)
    workloads = {point.problem: workload for point, workload in wanted.workloads.items()}
    best = _best(rows, workloads, identity)
    if not best:
        raise NobodyError("its ledger has no fresh times of this preset", elsewhere=False)
    chosen = best.keys() if closer == "all" else choice.largest(wanted)
    caller = Caller(entry, rows, identity, gpu)
    found = [
        _meeting(entry, some, ceilings, caller.gets(problem, workloads[problem]), near)
        for problem, some in best.items()
        if problem in chosen
    ]
    if not found:
        raise NobodyError(
            f"its ledger has fresh times at other problems, but none at {_named(wanted, chosen)}, "
            "where this preset measures finals",
            elsewhere=True,
        )
    return found


def microseconds(row: Measurement) -> float:
    """Return the time that a sweep measured for a finalist."""
    assert row.outcome.timing is not None, "a finalist was timed"
    return row.outcome.timing.median_us


def _best(
    rows: Iterable[Measurement], workloads: Mapping[Values, str], identity: Identity
) -> dict[Values, dict[str, Measurement]]:
    """Return each provider's best fresh row, for each problem that has one."""
    best: dict[Values, dict[str, Measurement]] = {problem: {} for problem in workloads}
    for row in rows:
        is_timed = row.outcome.timing is not None
        if is_timed and row.point.problem in best and row.key == identity.key(row.point):
            of_problem = best[row.point.problem]
            other = of_problem.get(row.point.provider)
            # An untrusted row is taken only if the provider has no other.
            if other is None or _rank(row) < _rank(other):
                workload = workloads[row.point.problem]
                of_problem[row.point.provider] = row.replace(workload=workload)
    return {problem: some for problem, some in best.items() if some}


def _meeting(
    entry: Entry,
    some: Mapping[str, Measurement],
    ceilings: Ceilings,
    dispatched: Dispatched | None,
    near: float | None,
) -> Finalists:
    kernel = entry.loaded.kernel
    candidates = {row.point: row for row in some.values()}
    if near is not None:
        times = {
            point: us for point, row in candidates.items() for doubtful, us in [_rank(row)] if not doubtful
        }
        far = times.keys() - choice.near_fastest(kernel, times, near)
        candidates = {
            point: row
            for point, row in candidates.items()
            if point not in far or point.provider == kernel.baseline
        }
    if dispatched is not None:
        # A point of several presets may have several workloads: choose the other candidates' workload.
        workload = next(iter(some.values())).workload
        extra = dispatched.row.replace(workload=workload)
        candidates.setdefault(dispatched.row.point, extra)
    ordered = sorted(
        candidates.values(),
        key=lambda row: (written_by(kernel.provider(row.point.provider)) != "own", _rank(row)),
    )
    side = Side(TREE, ROOT, entry.loaded.where)
    rows = {Candidate(side, row.point, row.key): row for row in ordered}
    name = noise_class(rate(1.0, _work(entry, ordered[0].point.problem), ceilings), 1.0)
    return Finalists(entry, Match(tuple(rows), ceilings.noise.get(name, 0.0), name), rows, dispatched)


def _work(entry: Entry, problem: Values) -> Work:
    kernel = entry.loaded.kernel
    return kernel.work(problems.make(kernel.problem, problem))


def _rank(row: Measurement) -> tuple[bool, float]:
    state = row.outcome.state
    return state is not None and not state.valid, microseconds(row)


def _named(wanted: Plan, chosen: Iterable[Values]) -> str:
    """Return the names of problems as tables write them: ``4096x16384 float32``."""
    points = {point.problem: point for point in wanted.points}
    return " and ".join(
        f"{notation.extent(points[one])} {notation.words(points[one])}".strip() for one in chosen
    )
