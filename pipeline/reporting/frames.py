"""Measurements and finals as data frames, and the selection of the best rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point, order

from ..points import notation
from ..store.finals import Final
from .headlines import doubt, headline_of, x_name

TEXTS = (
    *("status", "error", "incomparable", "bound", "invalid_reason", "throttle"),
    *("gpu", "commit", "run", "command"),
)
NUMBERS = (
    *("median_us", "p20_us", "p80_us", "rel_ci", "noise_floor", "earlier_us"),
    *("gbps", "tflops", "ceiling_fraction", "bytes", "flops"),
    *("prepare_ms", "peak_mib", "host_us"),
)

COLUMNS = [
    *("key", "kernel", "provider", "problem", "parameters", "workload"),
    *("extent", "words", "configuration", "label", "x", "headline", "rank"),
    *("source", "measurement", "environment", "valid", "dirty", "measured_at"),
    *TEXTS,
    *NUMBERS,
]
"""The columns of a frame: a measurement's fields, and its point in words.

``extent`` and ``words`` are the problem's numbers and words. ``x`` is the problem's value on its workload's x
axis, ``headline`` the rate that is compared, ``rank`` the problem's place among the frame's problems.
``earlier_us`` is the time before the source was edited, ``measurement`` the version of the measuring code,
and ``environment`` the digest of the environment in the key.
"""

PLACE = ["kernel", "gpu", "words", "extent"]
"""The columns that name a problem on a machine."""


def frame(measurements: Iterable[Measurement]) -> pd.DataFrame:
    """Return measurements as a frame with ``COLUMNS``, one row each; an empty frame has the columns too."""
    measurements = list(measurements)
    ranks = _ranks(_problem(one.point) for one in measurements)
    rows = []
    for one in measurements:
        row = _named(one, ranks) | {"earlier_us": None if one.earlier is None else one.earlier.median_us}
        for part in (one.outcome.timing, one.rate, one.outcome.state, one.outcome):
            row |= {name: getattr(part, name) for name in (*TEXTS, *NUMBERS, "valid") if hasattr(part, name)}
        rows.append(row)
    return _table(rows)


def frame_of_finals(rows: Iterable[Final]) -> pd.DataFrame:
    """Return finals as a frame with ``COLUMNS``; columns that only measurements have are empty."""
    rows = list(rows)
    ranks = _ranks(_problem(one.point) for one in rows)
    rates = ("gbps", "tflops", "bound", "ceiling_fraction", "bytes", "flops")
    timed = {"status": "ok", "valid": True, "rel_ci": 0.0, "noise_floor": 0.0}
    return _table(
        [
            _named(one, ranks)
            | timed
            | {name: getattr(one.rate, name) for name in rates}
            | {"median_us": one.median_us}
            for one in rows
        ]
    )


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    found = pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(NUMBERS, float))
    texts = found[[*TEXTS, "valid"]].astype(object)
    found[[*TEXTS, "valid"]] = texts.where(texts.notna(), None)
    return found


def ranked_together(*frames: pd.DataFrame) -> list[pd.DataFrame]:
    """Return frames with ranks among the problems of all of them, so that equal ranks are equal problems."""
    columns = ["kernel", "provider", "problem"]
    problems = [
        [
            _problem(Point(kernel=kernel, provider=provider, problem=problem))
            for kernel, provider, problem in rows[columns].itertuples(index=False, name=None)
        ]
        for rows in frames
    ]
    ranks = _ranks(one for some in problems for one in some)
    return [
        rows.assign(rank=[ranks[one] for one in some]) for rows, some in zip(frames, problems, strict=True)
    ]


def _ranks(problems: Iterable[tuple[object, ...]]) -> dict[tuple[object, ...], int]:
    return {one: rank for rank, one in enumerate(sorted(set(problems)))}


def _problem(point: Point) -> tuple[object, ...]:
    """Return the sort key of a problem: its kernel, its words, its numbers and their names."""
    kernel, _, words, numbers, _ = order(point)
    return kernel, words, numbers, tuple(point.problem)


def _named(one: Measurement | Final, ranks: Mapping[tuple[object, ...], int]) -> dict[str, Any]:
    """Return the columns that describe a row's point and origin."""
    point, origin = one.point, one.origin
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
        "rank": ranks[_problem(point)],
        "source": one.parts.source,
        "measurement": one.parts.measurement,
        "environment": one.parts.environment,
        **{
            name: getattr(origin, name)
            for name in ("gpu", "commit", "dirty", "run", "command", "measured_at")
        },
    }


def best_configurations(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each provider's fastest configuration at each kernel, GPU and problem, in that order.

    Only timed rows count. A throttled time is an upper bound and may win. Any other distrusted time is taken
    only if the provider has no trusted time. Times of two versions of the measuring code are not compared: at
    each problem the newest version is used.
    """
    timed = rows[rows["status"].eq("ok")]
    versions = timed["measurement"].map(_version).astype(float)
    newest = versions.groupby([timed[name] for name in PLACE], dropna=False).transform("max")
    return fastest_of_each(timed[versions.eq(newest)], ["provider"])


def best_providers(best: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest provider at each kernel, GPU and problem, with a trusted time if there is one."""
    return fastest_of_each(best, [])


def fastest_of_each(timed: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the fastest timed row for each kernel, GPU, problem and combination of values in ``names``.

    Trusted rows come before distrusted rows.
    """
    ranked = timed.reset_index(drop=True).assign(distrusted=distrusted(timed).to_numpy())
    columns = ["kernel", "gpu", "rank", *names, "distrusted", "median_us", "provider"]
    ranked = ranked.sort_values(list(dict.fromkeys(columns)), kind="stable")
    return timed.iloc[ranked.drop_duplicates([*PLACE, *names]).index]


def _version(measurement: str) -> float:
    """Return the version of the measuring code as a number; edited code counts as the newest."""
    return float(measurement) if measurement.isdecimal() else math.inf


def distrusted(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return a mask of the rows whose time is distrusted and not an upper bound."""
    return rows["valid"].eq(False) & rows["throttle"].isna()


def against_baseline(best: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """Add the columns ``speedup``, ``tied`` and ``doubt`` to the best configurations.

    ``speedup`` is the time of the kernel's baseline at the same problem over the row's time; NaN if the
    baseline was not timed or either time is not comparable. ``tied`` says whether the difference lies within
    the noise floor or confidence interval of either. ``doubt`` is the reason to distrust the ratio, or empty.
    """
    rows: list[Any] = best.to_dict("records")
    base = {_place(row): row for row in rows if row["provider"] == baselines.get(row["kernel"])}
    found: list[tuple[float, bool, str]] = []
    for row in rows:
        other = base.get(_place(row))
        if other is None or isinstance(row["incomparable"], str) or isinstance(other["incomparable"], str):
            found.append((math.nan, False, doubt(row)))
            continue
        ratio = other["median_us"] / row["median_us"]
        noise = [one[name] for one in (row, other) for name in ("noise_floor", "rel_ci")]
        is_tied = other is not row and any(abs(ratio - 1) <= one for one in noise)  # False for NaN
        found.append((ratio, is_tied, doubt(row) or doubt(other)))
    ratios, ties, doubts = zip(*found, strict=True) if found else ((), (), ())
    return best.assign(speedup=list(ratios), tied=list(ties), doubt=list(doubts))


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in PLACE)
