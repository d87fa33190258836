"""Measurements as tables of data, and the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from kernels.contract import Work
from pipeline import UserError
from pipeline.points import catalog, notation, problems
from pipeline.points.catalog import Entry
from pipeline.points.frozen import Values
from pipeline.points.point import Point, order
from pipeline.reporting import ranking
from pipeline.store.finals import Final
from pipeline.store.record import Measurement, Origin, Outcome, Rate, State, Timing

if TYPE_CHECKING:
    import pandas as pd

GROUPS: dict[str, type[Any]] = {"timing": Timing, "rate": Rate, "state": State, "origin": Origin}

OUTCOME = [name for name in Outcome.model_fields if name not in (*GROUPS, "launch", "interpreted")]

COLUMNS = [
    *("key", "kernel", "provider", "problem", "parameters", "workload"),
    *("extent", "words", "configuration", "label", "x", "headline", "rank"),
    *OUTCOME,
    *("incomparable", "source", "measurement", "environment", "earlier_us"),
    *(name for group in GROUPS.values() for name in group.model_fields),
]
"""The columns of a frame: a measurement's fields, and what people read of its point. ``extent`` and
``words`` are the problem's numbers and words, ``x`` its value on its workload's x axis, ``headline`` which
rate people compare, ``rank`` its problem's place among all of the frame, ``earlier_us`` the time before its
source was edited, ``measurement`` the version of the measuring code, ``environment`` the digest of what of it
is in the key."""

USUAL_TIMERS = ("graph", "event", "perf_counter")
"""How a device is timed unless somebody asks for another way: on a GPU a graph, or events where one can't be
captured, and on a CPU the host's clock."""


@cache
def entry_of(kernel: str) -> Entry | None:
    """The kernel with its YAML; None for one that is not in this repository any more, or never was."""
    try:
        return catalog.find(kernel)
    except UserError:
        return None


def x_name(kernel: str, workload: str, point: Point | None = None) -> str:
    """The dimension on a workload's x axis; of a kernel that is gone the first number of the point's
    problem."""
    entry = entry_of(kernel)
    if entry is not None:
        return entry.x_dimension(workload)
    numbers = [] if point is None else [name for name, value in point.problem.items() if type(value) is int]
    return numbers[0] if numbers else "size"


def headline(kernel: str, workload: str, problem: Values | None = None) -> str:
    """Which rate people compare: ``gbps`` or ``tflops``.

    Two machines' rows at one problem may be of two workloads. So the problem's rate, where one is given, is
    that of the workload that lists it; only of a problem that none lists it is its row's workload's."""
    entry = entry_of(kernel)
    if entry is None:
        return "gbps"
    return _listed_headlines(kernel).get(problem) or entry.headline(workload)


def headline_of(row: Measurement | Final) -> str:
    """Which rate people compare at a row's problem."""
    return headline(row.point.kernel, row.workload, row.point.problem)


@cache
def _listed_headlines(kernel: str) -> Mapping[Values | None, str]:
    """The rate of each problem that a kernel's YAML lists; of one that several workloads list, that of the
    first that names a rate of its own."""
    entry = entry_of(kernel)
    assert entry is not None, "a kernel that is gone has no YAML"
    found: dict[Values | None, str] = {}
    for name, workload in sorted(entry.config.workloads.items(), key=lambda one: one[1].headline is None):
        for problem in problems.of_workload(entry, workload, {}):
            found.setdefault(problems.identity_of(problem), entry.headline(name))
    return found


def comparable(measurements: Iterable[Measurement]) -> list[Measurement]:
    """One row of each point of a machine, the newest, of those that can be compared: timed in the usual way,
    over inputs that are in no cache."""
    newest: dict[tuple[str, Point], Measurement] = {}
    for row in measurements:
        timing = row.outcome.timing
        if timing is not None and (timing.cache != "cold" or timing.timer not in USUAL_TIMERS):
            continue
        slot = (row.origin.gpu, row.point)
        if slot not in newest or newest[slot].origin.measured_at <= row.origin.measured_at:
            newest[slot] = row
    return list(newest.values())


def work_of(kernel: str, problem: Values) -> Work | None:
    """The work of a problem; None for a kernel that is not there, and for a problem of an earlier
    declaration."""
    entry = entry_of(kernel)
    if entry is None:
        return None
    declared = entry.loaded.kernel
    try:
        return declared.work(problems.make(declared.problem, problem))
    except UserError:
        return None


def flat(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Measurements as one mapping each, from ``COLUMNS`` to what the measurement has there."""
    measurements = list(measurements)
    ranks = _ranks(measurements)
    rows = []
    for one in measurements:
        row = _named(one, ranks)
        row |= one.outcome.model_dump(mode="json", include=set(OUTCOME))
        row |= {"incomparable": one.outcome.incomparable, "source": one.parts.source}
        row["earlier_us"] = None if one.earlier is None else one.earlier.median_us
        row |= {"measurement": one.parts.measurement, "environment": one.parts.environment}
        parts = {
            "timing": one.outcome.timing,
            "rate": one.rate,
            "state": one.outcome.state,
            "origin": one.origin,
        }
        for group, part in parts.items():
            empty: dict[str, Any] = dict.fromkeys(GROUPS[group].model_fields)
            row |= empty if part is None else part.model_dump(mode="json")
        rows.append(row)
    return rows


def frame(measurements: Iterable[Measurement]) -> pd.DataFrame:
    """Measurements as a table of data: one row each, even for none, with ``COLUMNS``."""
    import pandas as pd

    return pd.DataFrame(flat(measurements), columns=COLUMNS)


def frame_of_finals(rows: Iterable[Final]) -> pd.DataFrame:
    """Finals as such a table; what only a measurement has is empty."""
    import pandas as pd

    rows = list(rows)
    ranks = _ranks(rows)
    found = [
        dict.fromkeys(COLUMNS)
        | _named(one, ranks)
        | one.rate.model_dump(mode="json")
        | one.origin.model_dump(mode="json")
        | {
            "source": one.parts.source,
            "measurement": one.parts.measurement,
            "status": "ok",
            "valid": True,
            "median_us": one.median_us,
            "rel_ci": 0.0,
            "noise_floor": 0.0,
        }
        for one in rows
    ]
    return pd.DataFrame(found, columns=COLUMNS)


def _ranks(rows: Iterable[Measurement | Final]) -> dict[tuple[object, ...], int]:
    return {one: rank for rank, one in enumerate(sorted({place(row.point) for row in rows}))}


def _named(one: Measurement | Final, ranks: Mapping[tuple[object, ...], int]) -> dict[str, Any]:
    """What a row says of its point."""
    point = one.point
    return {
        "key": one.key,
        "kernel": point.kernel,
        "provider": point.provider,
        "problem": point.problem,
        "parameters": point.parameters,
        "workload": one.workload,
        "extent": notation.extent(point),
        "words": notation.words(point),
        "configuration": notation.configuration(point),
        "label": notation.label(point),
        "x": point.problem.get(x_name(point.kernel, one.workload, point)),
        "headline": headline_of(one),
        "rank": ranks[place(point)],
    }


def place(point: Point) -> tuple[object, ...]:
    """A problem among others: by the kernel and the values, and by the names of these."""
    kernel, _, words, numbers, _ = order(point)
    return kernel, words, numbers, tuple(point.problem)


def best_configurations(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``ranking.best_configurations``, of a table that may have millions."""
    timed = table[table["status"].eq("ok")]
    versions = timed["measurement"].map(ranking.version_of).astype(float)
    newest = versions.groupby([timed[name] for name in ranking.PLACE], dropna=False).transform("max")
    timed = timed[versions.eq(newest)]
    return _first_of_each(timed, ["provider"], ["provider", "distrusted", "median_us"])


def fastest_of_each(timed: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The fastest of the timed rows at each kernel, GPU and problem with the same values in these columns."""
    return _first_of_each(timed, names, [*names, "median_us"])


def best_providers(best: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``ranking.best_providers``."""
    return _first_of_each(best, [], ["distrusted", "median_us", "provider"])


def _first_of_each(table: pd.DataFrame, names: Sequence[str], order_: Sequence[str]) -> pd.DataFrame:
    ranked = table[list(dict.fromkeys([*ranking.RANKED, *names]))].reset_index(drop=True)
    ranked["distrusted"] = distrusted(ranked)
    ranked = ranked.sort_values(["kernel", "gpu", "rank", *order_], kind="stable")
    return table.iloc[ranked.drop_duplicates([*ranking.PLACE, *names]).index]


def bounds(table: pd.DataFrame) -> pd.Series[bool]:
    """The rows of ``ranking.is_bound``."""
    return table["valid"].eq(False) & table["throttle"].notna()


def distrusted(table: pd.DataFrame) -> pd.Series[bool]:
    """The rows of ``ranking.is_distrusted``."""
    return table["valid"].eq(False) & ~bounds(table)


def against_baseline(best: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """Add ``speedup``, ``tied`` and ``doubt``, as ``ranking.against_baseline`` has them."""
    found = ranking.against_baseline(_records(best, ranking.COMPARED), baselines)
    ratios, ties, doubts = zip(*found, strict=True) if found else ((), (), ())
    return best.assign(speedup=list(ratios), tied=list(ties), doubt=list(doubts))


def _records(table: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[Any] = table[list(columns)].to_dict("records")
    return rows
