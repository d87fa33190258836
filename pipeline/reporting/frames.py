"""Measurements and finals as tables of data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point, order
from pipeline.points import notation
from pipeline.reporting.headlines import headline_of, x_name
from pipeline.store.finals import Final

TEXTS = (
    "status",
    "error",
    "incomparable",
    "bound",
    "invalid_reason",
    "throttle",
    "gpu",
    "commit",
    "run",
    "command",
)
NUMBERS = (
    *("median_us", "p20_us", "p80_us", "rel_ci", "noise_floor", "tolerance_used", "earlier_us"),
    *("gbps", "tflops", "ceiling_fraction", "bytes", "flops"),
)

COLUMNS = [
    *("key", "kernel", "provider", "problem", "parameters", "workload"),
    *("extent", "words", "configuration", "label", "x", "headline", "rank"),
    *("source", "measurement", "environment", "valid", "dirty", "measured_at"),
    *TEXTS,
    *NUMBERS,
]
"""The columns of a frame: a measurement's fields, and what people read of its point. ``extent`` and
``words`` are the problem's numbers and words, ``x`` its value on its workload's x axis, ``headline`` which
rate people compare, ``rank`` its problem's place among all of the frame, ``earlier_us`` the time before its
source was edited, ``measurement`` the version of the measuring code, ``environment`` the digest of what of it
is in the key."""


def frame(measurements: Iterable[Measurement]) -> pd.DataFrame:
    """Measurements as a table of data: one row each, even for none, with ``COLUMNS``."""
    measurements = list(measurements)
    ranks = _ranks(measurements)
    rows = []
    for one in measurements:
        row = _named(one, ranks) | {"earlier_us": None if one.earlier is None else one.earlier.median_us}
        for part in (one.outcome.timing, one.rate, one.outcome.state, one.outcome):
            row |= {name: getattr(part, name) for name in (*TEXTS, *NUMBERS, "valid") if hasattr(part, name)}
        rows.append(row)
    return _table(rows)


def frame_of_finals(rows: Iterable[Final]) -> pd.DataFrame:
    """Finals as such a table; what only a measurement has is empty."""
    rows = list(rows)
    ranks = _ranks(rows)
    rates = ("gbps", "tflops", "bound", "ceiling_fraction", "bytes", "flops")
    return _table(
        [
            _named(one, ranks)
            | {name: getattr(one.rate, name) for name in rates if hasattr(one.rate, name)}
            | {"status": "ok", "valid": True, "median_us": one.median_us, "rel_ci": 0.0, "noise_floor": 0.0}
            for one in rows
        ]
    )


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    found = pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(NUMBERS, float))
    texts = found[[*TEXTS, "valid"]].astype(object)
    found[[*TEXTS, "valid"]] = texts.where(texts.notna(), None)
    return found


def _ranks(rows: Iterable[Measurement | Final]) -> dict[tuple[object, ...], int]:
    return {one: rank for rank, one in enumerate(sorted({place(row.point) for row in rows}))}


def _named(one: Measurement | Final, ranks: Mapping[tuple[object, ...], int]) -> dict[str, Any]:
    """What a row says of its point, and where it comes from."""
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
        "rank": ranks[place(point)],
        "source": one.parts.source,
        "measurement": one.parts.measurement,
        "environment": one.parts.environment,
        **{
            name: getattr(origin, name)
            for name in ("gpu", "commit", "dirty", "run", "command", "measured_at")
        },
    }


def place(point: Point) -> tuple[object, ...]:
    """A problem among others: by the kernel and the values, and by the names of these."""
    kernel, _, words, numbers, _ = order(point)
    return kernel, words, numbers, tuple(point.problem)
