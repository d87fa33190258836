"""Tables of the documentation's figures over the whole grid of a kernel: what is the best at each problem,
and by which launch plan. ``python -m pipeline.docs`` writes them into pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernels.contract import Variable
from pipeline.points import notation
from pipeline.reporting import best
from pipeline.reporting.best import value
from pipeline.reporting.evidence_figures import FigureSelection, markdown, place
from pipeline.reporting.frames import comparable
from pipeline.reporting.numbers import number, percent, speedup
from pipeline.store.record import Launch, Measurement

LARGE_MB = 256
"""A problem that moves more than this does not fit into any cache, and its start and end are short beside
it."""

AIM = 0.97
"""The share of the ceiling that is aimed at for such problems."""

STRATEGY = "strategy"
"""The parameter by which a launch's strategy is asked for. Its default leaves the choice to the plan."""


def grid(
    rows: Mapping[tuple[str, str], Mapping[str, str]], x: str, megabytes: Mapping[tuple[str, str], float]
) -> str:
    """The rows of ``reports/best.csv`` of one machine by problem, its words side by side, and how many of the
    large ones reach the aim. ``megabytes`` is what each problem moves at least."""
    words = list(dict.fromkeys(words for _, words in rows))
    baseline = next(iter(rows.values()))["baseline"]
    columns = ("fastest", "us", "of ceiling", f"`{baseline}`")
    header = [x, *(f"{one}: {column}" if one else column for one in words for column in columns)]
    cells = [
        [extent, *(cell for one in words for cell in _best(rows.get((extent, one)), len(columns)))]
        for extent in dict.fromkeys(extent for extent, _ in rows)
    ]
    shares = {
        one: share
        for one, row in rows.items()
        if megabytes[one] > LARGE_MB and (share := value(row["ceiling_fraction"])) is not None
    }
    missed = [f"{' '.join(one)} ({percent(share)})" for one, share in shares.items() if share < AIM]
    but = f". Below it are {', '.join(missed)}" if missed else ""
    said = (
        f"Of the {len(shares)} problems that move more than {LARGE_MB} MB the fastest reaches "
        f"{100 * AIM:.0f} % of the ceiling at {len(shares) - len(missed)}{but}."
    )
    return "\n\n".join([markdown(header, cells, 1), *best.notes(rows.values()), *([said] if shares else [])])


def _best(row: Mapping[str, str] | None, columns: int) -> list[str]:
    if row is None:
        return [""] * columns
    return [
        f"`{row['provider']} {row['configuration']}".rstrip() + "`",
        best.time(row),
        percent(value(row["ceiling_fraction"])),
        best.ratio(row),
    ]


@dataclass(frozen=True)
class PlannedRow:
    """A timed row whose provider says what it launched."""

    row: Measurement
    us: float
    launch: Launch
    """The last of a call's launches: before it parameters may be copied, or partial results made."""

    @property
    def strategy(self) -> str:
        """How it goes about the problem."""
        return str(self.launch.strategy)

    def asked(self, declared: Variable) -> str:
        """The strategy that was asked for; rows of before there was such a parameter had no other way."""
        return str(self.row.point.parameters.get(declared.name, declared.default))


def plans(
    selection: FigureSelection, measurements: Iterable[Measurement], declared: Variable, x: str
) -> Iterator[str]:
    """For each machine a caption and a table: by which launch plan a provider is the fastest at each problem,
    and how long the others take beside it. ``declared`` is the parameter by which a strategy is asked for. A
    problem with a row that does not say what was launched is left out, since that one may be the fastest."""
    timed: dict[str, dict[tuple[str, str], list[Measurement]]] = {}
    for row in comparable(measurements):
        if selection.has(row.point) and _is_trusted(row):
            timed.setdefault(row.origin.gpu, {}).setdefault(place(row.point), []).append(row)
    for gpu, problems in sorted(timed.items()):
        planned = {
            one: [
                PlannedRow(row, row.outcome.timing.median_us, row.outcome.launch[-1])
                for row in problems[one]
                if row.outcome.timing is not None and row.outcome.launch
            ]
            for one in selection.problems
            if one in problems and all(row.outcome.launch for row in problems[one])
        }
        if planned:
            caption = f"*{selection.machine(gpu)}, {_caption(planned, declared)}*"
            yield f"{caption}\n\n{_plans(planned, declared, x)}"


def _is_trusted(row: Measurement) -> bool:
    state = row.outcome.state
    return row.outcome.timing is not None and (state is None or state.valid)


def _caption(planned: Mapping[tuple[str, str], Sequence[PlannedRow]], declared: Variable) -> str:
    every = [one for some in planned.values() for one in some]
    commits = sorted({f"`{(one.row.origin.commit or '')[:7]}`" for one in every})
    return (
        f"{len(every)} launches by sweeps, not side by side, commit{'s' * (len(commits) > 1)} "
        f"{', '.join(commits)}. `{declared.default}` and the columns behind it: the best such launch's "
        "time over the fastest's."
    )


def _plans(planned: Mapping[tuple[str, str], Sequence[PlannedRow]], declared: Variable, x: str) -> str:
    default = declared.default
    there = {one.strategy for some in planned.values() for one in some}
    strategies = [name for name in map(str, declared.values or ()) if name in there]
    header = [
        x,
        "dtype",
        "fastest",
        "strategy",
        "blocks a cluster",
        "threads a block",
        "stages",
        "us",
        f"`{default}`",
    ]
    header += [f"`{name}`" for name in strategies]
    rows = []
    first = Counter[str]()
    gains: dict[tuple[str, str], float] = {}
    for problem, some in planned.items():
        best = min(some, key=lambda one: one.us)
        first[best.strategy] += 1
        by_strategy = {name: [one for one in some if one.strategy == name] for name in strategies}
        auto = [one for one in some if one.asked(declared) == default]
        named = [one for one in some if one.asked(declared) != default]
        if auto and named:
            gains[problem] = min(one.us for one in auto) / min(one.us for one in named) - 1
        rows.append(
            [
                *problem,
                f"`{notation.label(best.row.point)}`",
                f"`{best.strategy}`",
                str(prod(best.launch.cluster)),
                str(prod(best.launch.block)),
                str(best.launch.stages or ""),
                number(best.us),
                *(_over(of, best.us) for of in (auto, *by_strategy.values())),
            ]
        )
    counted = ", ".join(f"`{name}` at {count}" for name, count in first.most_common())
    said = [f"Of {len(planned)} problems the fastest launch is {counted}."]
    if gains:
        where, most = max(gains.items(), key=lambda item: item[1])
        gain = f"is {100 * most:.1f} % faster than the best of `{default}`, at {' '.join(where)}"
        if most <= 0:
            gain = f"is nowhere faster than the best of `{default}`"
        said.append(f"At {len(gains)} a strategy was asked for by name, too: at the most it {gain}.")
    return f"{markdown(header, rows, 4)}\n\n{' '.join(said)}"


def _over(some: Sequence[PlannedRow], us: float) -> str:
    return speedup(min(one.us for one in some) / us) if some else ""
