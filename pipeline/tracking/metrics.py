"""Metrics of MLflow's runs: a point's numbers at the step of its problem, and the best of a ledger.

The step of a metric is x, so MLflow takes the value at the largest x for the run's. A metric that ends with
``_at_4096`` has one value: the rate, or the share of the ceiling, at that problem, which is the same problem
in every run that has it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pipeline.points import notation
from pipeline.reporting import headlines, lines
from pipeline.reporting.lines import HOT, PlacedMeasurement
from pipeline.reporting.why import longest, native
from pipeline.store.evidence import Evidence
from pipeline.store.finals import Final
from pipeline.tracking.run_families import Value

TIMED = ("median_us", "p20_us", "p80_us", "min_us", "rel_ci")
SHARE = "ceiling_fraction"
RATES = ("gbps", "tflops", SHARE)
STATE = ("sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w")
ERRORS = ("max_abs_err", "max_rel_err")
"""The fields of a measurement that become metrics, where they have a value."""

COMPARED = ("median_us", *RATES)
"""The metrics of the best of each provider."""

RESOURCES = ("registers", "shared", "occupancy")
COUNTED = (
    *("memory_throughput_pct", "compute_throughput_pct", "dram_throughput_pct", "dram_gbps"),
    *("dram_read_bytes", "dram_write_bytes", "l1_hit_pct", "l2_hit_pct"),
    *("achieved_occupancy_pct", "theoretical_occupancy_pct", "waves_per_sm", "local_bytes"),
    *("sectors_per_load", "sectors_per_store", "estimated_speedup_pct", "runtime_improvement_us"),
)
"""The fields of rows of generated code and of counters that become metrics; the counters' duration_us becomes
``counted_us``."""


def values(one: PlacedMeasurement) -> list[Value]:
    """A point's numbers: its times only if it was timed, its errors only if it was right."""
    outcome = one.row.outcome
    if outcome.status not in ("ok", "verified"):
        return []
    parts = ((TIMED, outcome.timing), (RATES, one.row.rate), (STATE, outcome.state), (ERRORS, outcome))
    numbers = {name: getattr(part, name) for names, part in parts if part is not None for name in names}
    return [
        Value(name, float(number), one.step, one.at_ms)
        for name, number in numbers.items()
        if number is not None and math.isfinite(number)
    ]


def at_problem(one: PlacedMeasurement) -> list[Value]:
    """The point's headline rate, and its share of the ceiling, under names that tell its problem, where that
    has a number."""
    if one.line.x is None:
        return []
    name = headlines.headline_of(one.row)
    rates = [value for value in values(one) if value.key in (name, SHARE)]
    return [value._replace(key=f"{value.key}_at_{problem(one)}", step=0) for value in rates]


def problem(one: PlacedMeasurement) -> str:
    """A point's problem in a metric's name: ``4096`` on the kernel's own line, else its dimensions,
    ``rows_37_columns_781``."""
    where = lines.elsewhere(one.point.kernel, one.line)
    entry = headlines.entry_of(one.point.kernel)
    own = entry is not None and one.line.x == entry.loaded.kernel.size[0]
    words = str(one.step) if own else f"{one.line.x}_{one.step}"
    return re.sub(r"\W+", "_", f"{words} {where}".strip())


def reasons(one: PlacedMeasurement, known: Mapping[str, Mapping[str, float]]) -> list[Value]:
    """The metrics that explain a point, at its step."""
    return [Value(name, value, one.step, one.at_ms) for name, value in known.get(one.row.key, {}).items()]


def explained(found: Evidence, kernel: str, gpu: str) -> dict[str, dict[str, float]]:
    """The metrics that explain a measurement, by its key: resources of its code, launches, and counters of
    its longest kernel."""
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
            # No code of it was taken apart, as of torch's own kernels; ncu sees the same of its launch.
            held = counted.theoretical_occupancy_pct
            numbers |= {"registers": counted.registers, "occupancy": None if held is None else held / 100}
        known = {name: float(value) for name, value in numbers.items() if value is not None}
        metrics[key] = metrics.get(key, {}) | known
    return metrics


def with_finals(
    reasons: Mapping[str, Mapping[str, float]], held: Iterable[Final]
) -> dict[str, Mapping[str, float]]:
    """Add the finals of a measurement's point: its time side by side, and its ratio to the fastest of
    ours."""
    found = dict(reasons)
    for row in held:
        if row.power == "burst":
            over = {} if row.against is None else {"final_over_ours": row.against.ratio}
            found[row.key] = {**found.get(row.key, {}), "final_us": row.median_us, **over}
    return found


def summary(placed: Sequence[PlacedMeasurement]) -> tuple[Value, ...]:
    """The parent's metrics: points by status, and the best of any configuration along the kernel's main line,
    of all words together and of each."""
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
    # MLflow's page "Compare" draws the first metric: a rate at a problem of both runs.
    rates = sorted((value for _, value in best.values()), key=lambda one: ("_at_" not in one.key, one))
    return (*rates, *sorted(points))


def main_line(placed: Iterable[PlacedMeasurement]) -> list[PlacedMeasurement]:
    """The measurements on the kernel's main line: cold inputs along its size, all else at its default;
    without such on the longest line."""
    on_line: dict[tuple[bool, str, str], list[PlacedMeasurement]] = {}
    for one in placed:
        where = lines.elsewhere(one.point.kernel, one.line)
        on_line.setdefault((one.cache == HOT, where, one.line.x or ""), []).append(one)

    def rank(line: tuple[tuple[bool, str, str], list[PlacedMeasurement]]) -> tuple[bool, bool, int, str]:
        (hot, where, _), found = line
        return hot, bool(where), -len({one.step for one in found}), where

    return min(on_line.items(), key=rank)[1]


def bests(placed: Iterable[PlacedMeasurement]) -> dict[tuple[str, str], list[PlacedMeasurement]]:
    """The fastest measurements at each problem of the main line, by provider and words; an untrusted one only
    where there is no other."""
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
