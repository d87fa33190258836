"""The report's tables of why: what limits the best, the default and the baseline, and what they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.measure.evidence import CodeRow, CounterRow, Evidence, ProfileRow
from pipeline.measure.record import Measurement
from pipeline.measure.results import label
from pipeline.measure.table import number


def longest(rows: Iterable[CounterRow]) -> dict[str, CounterRow]:
    """By key the kernel of a point that takes longest; points that were not counted are left out."""
    found: dict[str, CounterRow] = {}
    for row in rows:
        if row.status != "ok" or row.key is None:
            continue
        known = found.get(row.key)
        if known is None or (row.duration_us or 0) > (known.duration_us or 0):
            found[row.key] = row
    return found


def native(rows: Iterable[CodeRow]) -> dict[str, CodeRow]:
    """By key the code that the machine's own GPU runs for a point, of several functions the largest."""
    found: dict[str, CodeRow] = {}
    for row in rows:
        if row.key is None or not row.native or row.mix is None:
            continue
        known = found.get(row.key)
        if known is None or known.mix is None or row.mix.instructions > known.mix.instructions:
            found[row.key] = row
    return found


def sections(
    kernel: str, machines: Mapping[str, str], evidence: Evidence, measurements: Sequence[Measurement]
) -> list[dict[str, Any]]:
    """For each machine that left evidence: the table's lines, what was not counted and why, and what calls
    launch, in sentences."""
    found = []
    for slug, name in machines.items():
        counters = evidence.counters.get((kernel, slug), [])
        profiles = [row for row in evidence.profiles.get((kernel, slug), []) if row.status == "ok"]
        timed = {
            row.key: row
            for row in measurements
            if (row.point.kernel, row.origin.gpu) == (kernel, slug) and row.outcome.timing
        }
        lines = _lines(counters, native(evidence.code.get((kernel, slug), [])), timed)
        missing = [row.sentence for row in counters if row.status != "ok"]
        if lines or missing or profiles:
            found.append(
                {
                    "machine": name,
                    "lines": lines,
                    "missing": list(dict.fromkeys(missing)),
                    "profiles": [_sentence(row) for row in profiles],
                }
            )
    return found


def _lines(
    counters: Sequence[CounterRow], code: Mapping[str, CodeRow], timed: Mapping[str, Measurement]
) -> list[dict[str, Any]]:
    """A line a point that was counted, for the kernel that takes longest."""
    lines = []
    chosen = longest(counters).values()
    for row in sorted(chosen, key=lambda row: (row.dtype or "", row.size or 0, row.rows or 0, row.role)):
        compiled = code.get(str(row.key))
        measured = timed.get(str(row.key))
        spilled = compiled.mix.spilled_bytes if compiled and compiled.mix else None
        lines.append(
            {
                "size": row.extent,
                "role": row.role,
                "label": label(row.model_dump()),
                "us": number(measured.outcome.timing.median_us)
                if measured and measured.outcome.timing
                else "",
                "counted_us": number(row.duration_us),
                "memory": number(row.memory_throughput_pct),
                "compute": number(row.compute_throughput_pct),
                "dram": number(row.dram_gbps),
                "l2": number(row.l2_hit_pct),
                "occupancy": number(row.achieved_occupancy_pct),
                "registers": number(row.registers),
                "spilled": "" if spilled is None else str(spilled),
                "waves": number(row.waves_per_sm),
                "gain": number(row.estimated_speedup_pct),
                "sentence": row.sentence,
            }
        )
    return lines


def _sentence(row: ProfileRow) -> str:
    return f"{label(row.model_dump())}, size {row.extent}: {row.sentence}"
