"""The best configuration of a kernel at a problem on one machine: by what was measured there, and at a
problem that nobody measured what ``kernel_pipeline.ops`` chooses, by its own code.

The finalists of a provider count by their rounds; where it was in no finals, its rows of the sweeps count.
A time that is not to be trusted counts where there is no other. One of a GPU that was held back is an upper
bound, and may be the best.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from kernel_pipeline.contract import Gpu, Value, shown
from kernel_pipeline.errors import UserError
from kernel_pipeline.ops import rule, tuned
from kernel_pipeline.ops.table import Table, TunedRegion
from kernel_pipeline.ops.tuned import Choice
from kernel_pipeline.records import ceilings
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Measurement, Rate
from kernel_pipeline.records.point import Point, order
from kernel_pipeline.records.settings import TimingSettings
from pipeline.execution import old_rows
from pipeline.execution.identity import Identity
from pipeline.points import notation, problems
from pipeline.points.catalog import Entry
from pipeline.points.plan import Pins
from pipeline.reporting.headlines import comparable
from pipeline.reporting.numbers import percent
from pipeline.store import finals, provenance, results
from pipeline.store.finals import Final

NEAR = 0.02
"""Configurations whose time is within this share of the best one's are named beside it."""


@dataclass(frozen=True)
class TimedConfiguration:
    """A configuration at a problem: its row of the ledger, and its newest final, of the same key."""

    row: Measurement
    final: Final | None

    @property
    def label(self) -> str:
        """As ``cuda 4096x8w``."""
        return notation.label(self.row.point)

    @property
    def swept_us(self) -> float:
        """Its time in the ledger."""
        assert self.row.outcome.timing is not None, "it was timed"
        return self.row.outcome.timing.median_us

    @property
    def us(self) -> float:
        """Its time by finals where it was in some, else in the ledger."""
        return self.swept_us if self.final is None else self.final.median_us

    @property
    def is_bound(self) -> bool:
        """Whether the time is an upper bound, as the GPU was held back."""
        state = self.row.outcome.state
        return self.final is None and state is not None and not state.valid and state.throttle is not None

    @property
    def distrusted(self) -> str | None:
        """Why the time is not to be trusted; None where it is."""
        state = self.row.outcome.state
        if self.final is not None or state is None or state.valid:
            return None
        return state.invalid_reason or "no reason was recorded"

    def over(self, other: TimedConfiguration) -> float:
        """Its time over another's: by finals where both were in some, else by the sweeps."""
        if self.final is not None and other.final is not None:
            return self.final.median_us / other.final.median_us
        return self.swept_us / other.swept_us


@dataclass(frozen=True)
class BestChoice:
    """The best configuration at a problem.

    point:
        The configuration there.
    measured:
        The time that it rests on; for a problem that nobody measured, the same configuration's at the nearest
        problem where it was timed, None where there is none.
    fastest:
        The fastest configuration at the problem of ``measured``.
    near:
        The labels of configurations within ``NEAR`` of it, with how many times as long they take.
    chosen:
        The provider and configuration that ``kernel_pipeline.ops`` calls at the problem.
    doublings, across:
        How far the problem is from the one of ``measured``, and whether that is on the other side of the L2
        cache.
    """

    problem: Any
    point: Point
    measured: TimedConfiguration | None
    fastest: TimedConfiguration | None
    near: Sequence[tuple[str, float]]
    chosen: Choice
    doublings: float = 0.0
    across: bool = False

    @property
    def is_measured(self) -> bool:
        """Whether the problem itself was measured."""
        return self.measured is not None and self.measured.row.point.problem == self.point.problem

    @property
    def is_chosen(self) -> bool:
        """Whether ``kernel_pipeline.ops`` calls this very configuration."""
        chosen = self.chosen.provider, Values(self.chosen.parameters)
        return chosen == (self.point.provider, self.point.parameters)


class KernelOnMachine:
    """What a folder of results has of one kernel on one machine: on one of this ``environment``, a GPU of
    which a provider may ask ``limits``. ``heard`` are sentences on what can't be read, and on providers that
    can't be called."""

    def __init__(self, entry: Entry, folder: Path, environment: Environment, limits: Gpu | None) -> None:
        self.entry = entry
        self.kernel = entry.loaded.kernel
        self.environment = environment
        self.gpu = environment.gpu
        self.limits = limits
        self.heard: list[str] = []
        self.ledger = results.ledger_path(folder, entry.name, self.gpu)
        self.finals = finals.path(folder, entry.name, self.gpu)
        path = results.ceilings_path(folder, self.gpu)
        self.ceilings = results.read(Ceilings, path) if path.is_file() else None
        self.measured = self._measured()

    def _measured(self) -> dict[Any, list[TimedConfiguration]]:
        """Every configuration that was timed, by its problem, in the problems' order."""
        held = {row.key: row for row in finals.read(self.finals, self.heard.append) if row.power == "burst"}
        found: dict[Any, list[TimedConfiguration]] = {}
        made: dict[Values, Any] = {}
        rows = comparable(results.own_rows(self.ledger, self.heard.append))
        for row in sorted(rows, key=lambda one: order(one.point)[2:4]):
            if row.outcome.timing is None or not problems.declares(self.kernel, row.point):
                continue
            of = row.point.problem
            if of not in made:
                made[of] = problems.make(self.kernel.problem, of)
            found.setdefault(made[of], []).append(TimedConfiguration(row, held.get(row.key)))
        return found

    def answers(self, pins: Pins) -> list[BestChoice]:
        """The best configuration at each measured problem of these values; where none was measured, at the
        one that they name. Raises UserError where they name too little."""
        return [self._answer(problem) for given in self._combinations(pins) for problem in self._of(given)]

    def _combinations(self, pins: Pins) -> Iterator[dict[str, Value]]:
        named = {name: values for name, values in pins.items() if name != problems.SIZE}
        for size in pins.get(problems.SIZE, (None,)):
            of_size = {} if size is None else dict.fromkeys(self.kernel.size, size)
            for chosen in product(*named.values()):
                yield {**of_size, **dict(zip(named, chosen, strict=True))}

    def _of(self, given: Mapping[str, Value]) -> list[Any]:
        """The problems that were measured at these values; else the problems that they name, in each of the
        words that were measured, as dtypes, unless those are given."""
        there = [one for one in self.measured if _has(one, given)]
        if there:
            return there
        dimensions = self.kernel.dimensions()
        lacking = [
            name
            for name, one in dimensions.items()
            if name not in given and one.default is None and one.same_as is None
        ]
        values = " ".join(f"{name}={shown(value)}" for name, value in given.items())
        if lacking:
            raise UserError(
                f"{self.entry.name} was not measured at {values} on {self.gpu}: write "
                f"{', '.join(f'{name}=' for name in lacking)} too, or values that were measured: "
                f"{'; '.join(self._values(name) for name in given)}."
            )
        words = [name for name, one in dimensions.items() if one.type is not int and name not in given]
        of_words = {name: value for name, value in given.items() if dimensions[name].type is not int}
        known = dict.fromkeys(
            tuple(getattr(one, name) for name in words) for one in self.measured if _has(one, of_words)
        )
        named = [dict(zip(words, some, strict=True)) for some in known] or [{}]
        made = [problems.make(self.kernel.problem, {**given, **some}) for some in named]
        refused = {one: self._refused(one) for one in made}
        if all(refused.values()):
            raise UserError(f"{self.entry.name} was not measured there: {refused[made[0]]}.")
        return [one for one in made if refused[one] is None]

    def _refused(self, problem: Any) -> str | None:
        """Why there is no such problem, as of an arithmetic that its dtype lacks; None where there is one."""
        chosen = self.chosen(problem)
        provider = self.kernel.provider(chosen.provider)
        parameters = None
        if provider.parameters is not None:
            parameters = problems.make(provider.parameters, chosen.parameters)
        return provider.fits(problem, parameters, self.limits)

    def _values(self, name: str) -> str:
        """The values of a dimension that were measured."""
        values = dict.fromkeys(getattr(one, name) for one in self.measured)
        ordered = sorted(values, key=lambda value: (isinstance(value, str), value))
        return f"{name}={','.join(map(shown, ordered))}"

    def _answer(self, problem: Any) -> BestChoice:
        chosen = self.chosen(problem)
        some = self.measured.get(problem)
        if some is not None:
            best = _best(some)
            return BestChoice(problem, best.row.point, best, best, _near(best, some), chosen)
        point = Point(
            kernel=self.entry.name,
            provider=chosen.provider,
            problem=problems.identity_of(problem),
            parameters=Values(chosen.parameters),
        )
        found = min(self._elsewhere(problem, point), key=lambda one: one[:2], default=None)
        if found is None:
            return BestChoice(problem, point, None, None, (), chosen)
        across, doublings, one, beside = found
        best = _best(beside)
        return BestChoice(problem, point, one, best, _near(best, beside), chosen, doublings, across)

    def _elsewhere(
        self, problem: Any, point: Point
    ) -> Iterator[tuple[bool, float, TimedConfiguration, list[TimedConfiguration]]]:
        """A configuration at each problem of the same words where it was timed: whether that is on the other
        side of the cache, the distance by which the rule goes, and all that was timed there."""
        wanted, within = dataclasses.asdict(problem), self._is_within(problem)
        for one, some in self.measured.items():
            for each in some:
                of = each.row.point
                if (of.provider, of.parameters) == (point.provider, point.parameters):
                    alone = rule.Tuned(dataclasses.asdict(one), within, {each.label: 1.0})
                    pick = rule.pick([alone], wanted, within, self.kernel.size, lambda label: True)
                    if pick is not None:
                        yield self._is_within(one) != within, pick.distance, each, some

    def chosen(self, problem: Any) -> Choice:
        """The provider and configuration that ``kernel_pipeline.ops`` calls at a problem."""
        on_gpu = self.environment.kind == "cuda"
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = tuned.choose(self.entry.loaded, problem, self.limits, self.gpu if on_gpu else None)
        self.heard += [str(one.message) for one in heard]
        return found

    @cached_property
    def table(self) -> Table | None:
        """The table that ``kernel_pipeline.ops`` chooses by; it says itself what is wrong with it."""
        return tuned.table_of(self.gpu)

    def _is_within(self, problem: Any) -> bool:
        l2_bytes = self.table.l2_bytes if self.table else self.environment.l2_bytes or 0
        return tuned.is_within(self.kernel, problem, l2_bytes)

    def rate(self, one: TimedConfiguration) -> Rate:
        """A time as a share of the machine's ceilings."""
        problem = problems.make(self.kernel.problem, one.row.point.problem)
        return ceilings.rate(one.us, self.kernel.work(problem), self.ceilings)

    def old(self, row: Measurement) -> list[str]:
        """Why a row is old beside what is here now; none for one that is fresh. Which version of a package
        the machine had is not known here, and counts for nothing."""
        provider = self.kernel.provider(row.point.provider)
        identity = self._identity
        if provider.requires is not None:
            relevant = {provider.name: row.parts.environment}
            identity = Identity(self.entry.loaded, self.environment, TimingSettings(), 0, relevant)
        return old_rows.reasons(row, identity, self._runs, any_settings=True)

    @cached_property
    def _identity(self) -> Identity:
        # By any settings: those of a row's key are not looked at.
        return Identity(self.entry.loaded, self.environment, TimingSettings(), 0)

    @cached_property
    def _runs(self) -> dict[str, provenance.RunProvenance]:
        return provenance.read(provenance.beside(self.ledger))

    def why(self, best: BestChoice) -> str:
        """How ``kernel_pipeline.ops`` chooses at a problem, in words."""
        how = best.chosen.how
        words = {
            "exact": "the table of tuned problems",
            "generalised": "the rule between tuned problems, which is trusted here",
            "guessed": "the rule between tuned problems, too far from them to be trusted, but safer than a "
            "default",
            "default": "a default configuration, the safest that fits",
            "torch": "the baseline",
        }
        region = self._region(best.problem)
        p90 = None
        if region is not None and how in ("generalised", "guessed"):
            p90 = region.generalised_p90 if how == "generalised" else region.regret_p90
        cost = "" if p90 is None else f": in nine of ten cases at most {percent(p90)} over the fastest"
        return "; ".join(filter(None, [f"{words[how]} ({how}){cost}", best.chosen.reason]))

    def _region(self, problem: Any) -> TunedRegion | None:
        """The table's trust in the rule, on a problem's side of the L2 cache."""
        known = None if self.table is None else self.table.kernels.get(self.entry.name)
        regions = known.regions if known is not None else ()
        return next((one for one in regions if one.within_l2 == self._is_within(problem)), None)


def _has(problem: Any, given: Mapping[str, Value]) -> bool:
    return all(getattr(problem, name) == value for name, value in given.items())


def _best(some: Sequence[TimedConfiguration]) -> TimedConfiguration:
    """The best of a problem."""
    finalists = {one.row.point.provider for one in some if one.final is not None}
    contenders = [one for one in some if one.final is not None or one.row.point.provider not in finalists]
    return min(
        contenders, key=lambda one: (one.distrusted is not None and not one.is_bound, one.us, one.label)
    )


def _near(best: TimedConfiguration, some: Sequence[TimedConfiguration]) -> list[tuple[str, float]]:
    """The configurations within ``NEAR`` of the best, the fastest first."""
    ratios = [(one.label, one.over(best)) for one in some if one is not best and one.distrusted is None]
    return sorted((one for one in ratios if abs(one[1] - 1) <= NEAR), key=lambda one: one[1])
