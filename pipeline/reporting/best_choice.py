"""The best configuration of a kernel at a problem on one machine.

At a measured problem this is the fastest configuration. At any other problem it is the choice of
``kernel_pipeline.ops``, made by its own code.

A provider with finals is ranked by the median of its finalists' rounds, any other provider by its rows of the
sweeps. A distrusted time is used only if there is no trusted time. A throttled time is an upper bound and may
be the best.
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

from kernel_pipeline import problems
from kernel_pipeline.contract import Gpu
from kernel_pipeline.declared import Value, shown
from kernel_pipeline.errors import UserError
from kernel_pipeline.ops import rule, table_files, tuned
from kernel_pipeline.ops.choice import WORDS, Choice
from kernel_pipeline.ops.table import Table, TunedRegion
from kernel_pipeline.ops.tuned_problems import is_within
from kernel_pipeline.records import ceilings
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Measurement, Rate
from kernel_pipeline.records.point import Point, order
from kernel_pipeline.records.settings import TimingSettings

from ..keys import old_rows
from ..keys.identity import Identity
from ..points import notation
from ..points.catalog import SIZE, Entry
from ..points.plan import Pins
from ..store import finals, provenance, results
from ..store.finals import Final
from ..store.rows_that_count import comparable, own_rows
from .headlines import doubt_of, is_upper_bound
from .numbers import percent

NEAR = 0.02
"""Configurations within this share of the best time are listed beside the best."""


@dataclass(frozen=True)
class TimedConfiguration:
    """A configuration at a problem: its row of the ledger, and its newest final with the same key, if any."""

    row: Measurement
    final: Final | None

    @property
    def label(self) -> str:
        """The provider and its parameters: ``cuda 4096x8w``."""
        return notation.label(self.row.point)

    @property
    def swept_us(self) -> float:
        """The time in the ledger, in microseconds."""
        assert self.row.outcome.timing is not None, "it was timed"
        return self.row.outcome.timing.median_us

    @property
    def us(self) -> float:
        """The time of the final if there is one, else of the ledger, in microseconds."""
        return self.swept_us if self.final is None else self.final.median_us

    @property
    def is_bound(self) -> bool:
        """Whether the time is an upper bound: the GPU was throttled."""
        return self.final is None and is_upper_bound(self.row)

    @property
    def doubt(self) -> str:
        """Why the time is distrusted; empty for a trusted time."""
        return doubt_of(self.row) if self.final is None else ""

    def over(self, other: TimedConfiguration) -> float:
        """Return this time over another's: from finals if both have finals, else from the sweeps."""
        if self.final is not None and other.final is not None:
            return self.final.median_us / other.final.median_us
        return self.swept_us / other.swept_us


@dataclass(frozen=True)
class BestChoice:
    """The best configuration at a problem.

    point:
        The problem with its best configuration.
    measured:
        The measurement of that configuration. If the problem was not measured, this is the configuration's
        measurement at the nearest problem where it was timed, or None.
    fastest:
        The fastest configuration at the problem of ``measured``.
    near:
        The labels of the configurations within ``NEAR`` of ``fastest``, with their times over its time.
    chosen:
        The provider and configuration that ``kernel_pipeline.ops`` calls at the problem.
    doublings, across:
        The distance between the problem and the problem of ``measured``, and whether the two lie on different
        sides of the L2 cache.
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
        """Whether ``kernel_pipeline.ops`` calls the configuration of ``point``."""
        chosen = self.chosen.provider, Values(self.chosen.parameters)
        return chosen == (self.point.provider, self.point.parameters)


class KernelOnMachine:
    """A folder's results of one kernel on one machine.

    ``limits`` are the GPU's limits, for providers whose fit depends on them. ``heard`` collects warnings
    about files that can't be read and providers that can't be called.
    """

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
        """Return every timed configuration by problem, in the order of the problems."""
        held = {row.key: row for row in finals.read(self.finals, self.heard.append) if row.power == "burst"}
        found: dict[Values, list[TimedConfiguration]] = {}
        rows = comparable(own_rows(self.ledger, self.heard.append))
        for row in sorted(rows, key=lambda one: order(one.point)[2:4]):
            if row.outcome.timing is not None and problems.declares(self.kernel, row.point):
                found.setdefault(row.point.problem, []).append(TimedConfiguration(row, held.get(row.key)))
        return {problems.make(self.kernel.problem, values): some for values, some in found.items()}

    def answers(self, pins: Pins) -> list[BestChoice]:
        """Return the best configuration at each measured problem that has the values in ``pins``.

        If no measured problem has them, return it at the problem that they define. Raises UserError if they
        define no problem, or a problem that the chosen provider can't do.
        """
        named = {name: values for name, values in pins.items() if name != SIZE}
        return [
            self._answer(problem)
            for size in pins.get(SIZE, (None,))
            for chosen in product(*named.values())
            for problem in self._problems(
                ({} if size is None else dict.fromkeys(self.kernel.size, size))
                | dict(zip(named, chosen, strict=True))
            )
        ]

    def _problems(self, given: Mapping[str, Value]) -> list[Any]:
        """Return the measured problems with these values, else the problems that the values define.

        Dimensions that are words, such as the dtype, take each measured combination unless they are given.
        """
        if there := [one for one in self.measured if _has(one, given)]:
            return there
        dimensions = self.kernel.dimensions()
        lacking = [
            f"{name}="
            for name, one in dimensions.items()
            if name not in given and one.default is None and one.same_as is None
        ]
        if lacking:
            raise UserError(
                f"{self.entry.name} was not measured at {text(given)} on {self.gpu}: write "
                f"{', '.join(lacking)} too, or values that were measured: "
                f"{'; '.join(self._values(name) for name in given)}."
            )
        words = [name for name, one in dimensions.items() if one.type is not int and name not in given]
        of_words = {name: value for name, value in given.items() if dimensions[name].type is not int}
        known = dict.fromkeys(
            tuple(getattr(one, name) for name in words) for one in self.measured if _has(one, of_words)
        )
        made = [
            problems.make(self.kernel.problem, {**given, **dict(zip(words, some, strict=True))})
            for some in known
        ] or [problems.make(self.kernel.problem, given)]
        refused = {one: self._refused(one) for one in made}
        if all(refused.values()):
            raise UserError(f"{self.entry.name} was not measured at this problem: {refused[made[0]]}.")
        return [one for one in made if refused[one] is None]

    def _refused(self, problem: Any) -> str | None:
        """Return why the chosen provider can't do a problem, for example in this dtype; else None."""
        chosen = self.chosen(problem)
        provider = self.kernel.provider(chosen.provider)
        made = problems.make(provider.parameters, chosen.parameters) if provider.parameters else None
        return provider.fits(problem, made, self.limits)

    def _values(self, name: str) -> str:
        """Return the measured values of a dimension as text."""
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
        """Find the point's configuration at other problems with the same words.

        Yields whether that problem is on the other side of the L2 cache, its distance by the rule, the
        configuration as timed there, and all configurations timed there.
        """
        wanted, within = dataclasses.asdict(problem), self._is_within(problem)
        for one, some in self.measured.items():
            for each in some:
                if each.row.point.replace(problem=point.problem) == point:
                    alone = rule.Tuned(dataclasses.asdict(one), within, {each.label: 1.0})
                    pick = rule.pick([alone], wanted, within, rule.scales(self.kernel), lambda label: True)
                    if pick is not None:
                        yield self._is_within(one) != within, pick.distance, each, some

    def chosen(self, problem: Any) -> Choice:
        """Return the provider and configuration that ``kernel_pipeline.ops`` calls at a problem."""
        on_gpu = self.environment.kind == "cuda"
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = tuned.choose(self.entry.loaded, problem, self.limits, self.gpu if on_gpu else None)
        self.heard += [str(one.message) for one in heard]
        return found

    @cached_property
    def table(self) -> Table | None:
        """The table from which ``kernel_pipeline.ops`` chooses; reading a broken table warns by itself."""
        return table_files.table_of(self.gpu)

    def _is_within(self, problem: Any) -> bool:
        l2_bytes = self.table.l2_bytes if self.table else self.environment.l2_bytes or 0
        return is_within(self.kernel, problem, l2_bytes)

    def rate(self, one: TimedConfiguration) -> Rate:
        """Return a configuration's rate and its share of the machine's ceiling."""
        problem = problems.make(self.kernel.problem, one.row.point.problem)
        return ceilings.rate(one.us, self.kernel.work(problem), self.ceilings)

    def old(self, row: Measurement) -> list[str]:
        """Return why a row is old; empty for a fresh row.

        For a provider that needs a package, the environment is not compared: the package's version on the
        machine is unknown here.
        """
        provider = self.kernel.provider(row.point.provider)
        identity = self._identity
        if provider.requires is not None:
            relevant = {provider.name: row.parts.environment}
            identity = Identity(self.entry.loaded, self.environment, TimingSettings(), 0, relevant)
        return old_rows.reasons(row, identity, self._runs, any_settings=True)

    @cached_property
    def _identity(self) -> Identity:
        # ``old`` does not compare settings, so any will do.
        return Identity(self.entry.loaded, self.environment, TimingSettings(), 0)

    @cached_property
    def _runs(self) -> dict[str, provenance.RunProvenance]:
        return provenance.read(provenance.beside(self.ledger))

    def why(self, best: BestChoice) -> str:
        """Return how ``kernel_pipeline.ops`` chooses at the problem, in words."""
        how = best.chosen.how
        region = self._region(best.problem)
        p90 = None
        if region is not None and how in ("generalised", "guessed"):
            p90 = region.generalised_p90 if how == "generalised" else region.regret_p90
        cost = "" if p90 is None else f": in nine of ten cases at most {percent(p90)} over the fastest"
        return "; ".join(filter(None, [f"{WORDS[how]} ({how}){cost}", best.chosen.reason]))

    def _region(self, problem: Any) -> TunedRegion | None:
        """Return the table's record of the rule's regret on the problem's side of the L2 cache, if any."""
        known = None if self.table is None else self.table.kernels.get(self.entry.name)
        regions = known.regions if known is not None else ()
        return next((one for one in regions if one.within_l2 == self._is_within(problem)), None)


def _has(problem: Any, given: Mapping[str, Value]) -> bool:
    return all(getattr(problem, name) == value for name, value in given.items())


def text(values: Mapping[str, Value]) -> str:
    """Return named values as text: ``rows=37 columns=4096``."""
    return " ".join(f"{name}={shown(value)}" for name, value in values.items())


def _best(some: Sequence[TimedConfiguration]) -> TimedConfiguration:
    finalists = {one.row.point.provider for one in some if one.final is not None}
    contenders = [one for one in some if one.final is not None or one.row.point.provider not in finalists]
    return min(contenders, key=lambda one: (bool(one.doubt) and not one.is_bound, one.us, one.label))


def _near(best: TimedConfiguration, some: Sequence[TimedConfiguration]) -> list[tuple[str, float]]:
    """Return the configurations within ``NEAR`` of the best and their relative times, fastest first."""
    ratios = [(one.label, one.over(best)) for one in some if one is not best and not one.doubt]
    return sorted((one for one in ratios if abs(one[1] - 1) <= NEAR), key=lambda one: one[1])
