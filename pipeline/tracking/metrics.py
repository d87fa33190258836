"""Compute the metrics of MLflow runs: a point's numbers at the step of its problem, and the best of a ledger.

The step of a metric is x, so MLflow shows the value at the largest x as the run's value. A metric whose name
ends with ``_at_4096`` has one value: the rate, or the share of the ceiling, at that problem. It is the same
problem in every run with this metric, so these values can be compared.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..points import notation
from ..reporting import headlines, lines
from ..reporting.lines import HOT, PlacedMeasurement
from ..reporting.why import longest, native
from ..store.evidence import Evidence
from ..store.finals import Final
from .run_families import Value

TIMED = ("median_us", "p20_us", "p80_us", "min_us", "rel_ci")
SHARE = "ceiling_fraction"
RATES = ("gbps", "tflops", SHARE)
STATE = ("sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w")
OUTCOME = ("max_abs_err", "max_rel_err", "prepare_ms", "peak_mib", "host_us")
"""The fields of a measurement that become metrics if they have a value."""

COMPARED = ("median_us", *RATES)
"""The metrics of the runs with the best of each provider."""

RESOURCES = ("registers", "shared", "occupancy")
COUNTED = (
    *("memory_throughput_pct", "compute_throughput_pct", "dram_throughput_pct", "dram_gbps"),
    *("dram_read_bytes", "dram_write_bytes", "l1_hit_pct", "l2_hit_pct"),
    *("achieved_occupancy_pct", "theoretical_occupancy_pct", "waves_per_sm", "local_bytes"),
    *("sectors_per_load", "sectors_per_store", "estimated_speedup_pct", "runtime_improvement_us"),
)
"""The fields that become metrics: RESOURCES from rows of generated code, COUNTED from rows of counters. The
counters' ``duration_us`` becomes ``counted_us``."""


def values(one: PlacedMeasurement) -> list[Value]:
    """Return a point's numbers: times, rates, device state, errors and memory. A point that is neither ``ok``
    nor ``verified`` has none."""
    outcome = one.row.outcome
    if outcome.status not in ("ok", "verified"):
        return []
    parts = ((TIMED, outcome.timing), (RATES, one.row.rate), (STATE, outcome.state), (OUTCOME, outcome))
    numbers = {name: getattr(part, name) for names, part in parts if part is not None for name in names}
    return [
        Value(name, float(number), one.step, one.at_ms)
        for name, number in numbers.items()
        if number is not None and math.isfinite(number)
    ]


def at_problem(one: PlacedMeasurement) -> list[Value]:
    """Return the point's headline rate and share of the ceiling, under names that contain its problem. The
    result is empty if the point's line has no x axis."""
    if one.line.x is None:
        return []
    name = headlines.headline_of(one.row)
    rates = [value for value in values(one) if value.key in (name, SHARE)]
    return [value._replace(key=f"{value.key}_at_{problem(one)}", step=0) for value in rates]


def problem(one: PlacedMeasurement) -> str:
    """Return a point's problem as part of a metric's name: x alone along the kernel's size (``4096``), else
    with the dimension's name. Dimensions that differ from their defaults follow, as in
    ``rows_37_columns_781``."""
    where = lines.elsewhere(one.point.kernel, one.line)
    entry = headlines.entry_of(one.point.kernel)
    own = entry is not None and one.line.x == entry.loaded.kernel.size[0]
    words = str(one.step) if own else f"{one.line.x}_{one.step}"
    return re.sub(r"\W+", "_", f"{words} {where}".strip())


def reasons(one: PlacedMeasurement, known: Mapping[str, Mapping[str, float]]) -> list[Value]:
    """Return the metrics that explain a point, at the point's step. ``known`` is by measurement key."""
    return [Value(name, value, one.step, one.at_ms) for name, value in known.get(one.row.key, {}).items()]


def explained(found: Evidence, kernel: str, gpu: str) -> dict[str, dict[str, float]]:
    """Return the metrics that explain a measurement, by its key: resources of its code, kernel launches, and
    counters of its longest kernel."""
    metrics: dict[str, dict[str, float]] = {}
    for key, row in native(found.code.get((kernel, gpu), ())).items():
        assert row.mix is not None, "only counted code is native"
        numbers = {name: getattr(row, name) for name in RESOURCES} | {"spilled_bytes": row.mix.spilled_bytes}
        metrics[key] = {name: float(value) for name, value in numbers.items() if value is not None}
    for profile in found.profiles.get((kernel, gpu), ()):
        numbers = {"device_launches": profile.launches, "profiled_device_us": profile.device_us}
        known = {name: float(value) for name, value in numbers.items() if value is not None}
        if profile.key is not None and known:
            metrics[profile.key] = metrics.get(profile.key, {}) | known
    for key, counted in longest(found.counters.get((kernel, gpu), ())).items():
        numbers = {name: getattr(counted, name) for name in COUNTED} | {"counted_us": counted.duration_us}
        if "registers" not in metrics.get(key, {}):
            # The code was not disassembled, as for torch's own kernels: take both from ncu's launch data.
            held = counted.theoretical_occupancy_pct
            numbers |= {"registers": counted.registers, "occupancy": None if held is None else held / 100}
        known = {name: float(value) for name, value in numbers.items() if value is not None}
        metrics[key] = metrics.get(key, {}) | known
    return metrics


def with_finals(
    reasons: Mapping[str, Mapping[str, float]], held: Iterable[Final]
) -> dict[str, Mapping[str, float]]:
    """Add the finals to the metrics of a measurement: its time side by side, and its ratio to the fastest of
    our own providers. Only finals of the ``burst`` regime are used."""
    found = dict(reasons)
    for row in held:
        if row.power == "burst":
            over = {} if row.against is None else {"final_over_ours": row.against.ratio}
            found[row.key] = {**found.get(row.key, {}), "final_us": row.median_us, **over}
    return found


def summary(placed: Sequence[PlacedMeasurement]) -> tuple[Value, ...]:
    """Return a parent run's metrics: the number of points by status, and the best rates of any configuration
    along the kernel's main line. The headline rate is also given for each dtype and other word."""
    at = max(one.at_ms for one in placed)
    counts = Counter(f"points_{one.row.outcome.status}" for one in placed)
    points = [Value(name, count, 0, at) for name, count in {"points": len(placed), **counts}.items()]
    best: dict[tuple[str, int], tuple[bool, Value]] = {}
    for one in main_line(placed):
        words = re.sub(r"\W+", "_", notation.words(one.point))
        headline = headlines.headline_of(one.row)
        for value in values(one):
            found = [value] if value.key in RATES else []
            if value.key == headline and words:
                name = f"best_{headline}_{words}"
                found += [value._replace(key=name)]
                found += [value._replace(key=f"{name}_at_{problem(one)}", step=0)]
            for better in found:
                slot = better.key, better.step
                candidate = one.trusted, better
                best[slot] = max(best.get(slot, candidate), candidate)
    # MLflow's page "Compare" draws the first metric, so begin with a rate at a problem that both runs have.
    rates = sorted((value for _, value in best.values()), key=lambda one: ("_at_" not in one.key, one))
    return (*rates, *sorted(points))


def main_line(placed: Iterable[PlacedMeasurement]) -> list[PlacedMeasurement]:
    """Return the measurements on the kernel's main line: cold inputs, along its size, with other dimensions
    at their defaults. If there are none, return the rows on the longest line, cold before hot."""
    on_line: dict[tuple[bool, str, str], list[PlacedMeasurement]] = {}
    for one in placed:
        where = lines.elsewhere(one.point.kernel, one.line)
        on_line.setdefault((one.cache == HOT, where, one.line.x or ""), []).append(one)

    def rank(line: tuple[tuple[bool, str, str], list[PlacedMeasurement]]) -> tuple[bool, bool, int, str]:
        (hot, where, _), found = line
        return hot, bool(where), -len({one.step for one in found}), where

    return min(on_line.items(), key=rank)[1]


def bests(placed: Iterable[PlacedMeasurement]) -> dict[tuple[str, str], list[PlacedMeasurement]]:
    """Return the fastest measurement at each problem of the main line, by (provider, words). An untrusted
    measurement is used only if there is no trusted measurement."""
    timed = [one for one in main_line(placed) if one.row.rate is not None]
    fastest: dict[tuple[str, str, int], PlacedMeasurement] = {}

    def rank(one: PlacedMeasurement) -> tuple[bool, float]:
        assert one.row.outcome.timing is not None, "a rate needs a time"
        return not one.trusted, one.row.outcome.timing.median_us

    for one in timed:
        slot = one.point.provider, notation.words(one.point), one.step
        fastest[slot] = min(fastest.get(slot, one), one, key=rank)
    found: dict[tuple[str, str], list[PlacedMeasurement]] = {}
    for (provider, words, _), one in sorted(fastest.items(), key=lambda item: item[0]):
        found.setdefault((provider, words), []).append(one)
    return found
