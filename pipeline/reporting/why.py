"""The report's tables from Nsight Compute and torch.profiler.

They say what limits the best, the default and the baseline, and which kernels a call launches.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point, order

from ..points import notation
from ..store.evidence import CodeRow, CounterRow, Evidence, Joined, NcuRule
from .document import Items, Section, Text
from .numbers import number
from .tables import TextTable

MOST_CHARACTERS = 500
"""The maximum length of a rule's text in the report; the counter rows hold the whole text."""

NOTE = (
    "Counted by Nsight Compute in separate launches; us is the sweep's time. If a call launches several "
    "kernels, the longest kernel is shown. The estimated speedup comes from the named rule of ncu."
)

OUTDATED = (
    "Left out until the stages run again, since these points were measured again from another source or "
    "with other options"
)


def longest(rows: Iterable[CounterRow]) -> dict[str, CounterRow]:
    """Return the longest-running kernel of each counted point, by key."""
    found: dict[str, CounterRow] = {}
    for row in rows:
        if row.status == "ok" and row.key is not None:
            known = found.setdefault(row.key, row)
            if (row.duration_us or 0) > (known.duration_us or 0):
                found[row.key] = row
    return found


def native(rows: Iterable[CodeRow]) -> dict[str, CodeRow]:
    """Return the code that the machine's GPU runs for each point, by key: the largest of its functions."""
    found: dict[str, CodeRow] = {}
    for row in rows:
        if row.key is not None and row.native and row.mix is not None:
            known = found.setdefault(row.key, row)
            if known.mix is None or row.mix.instructions > known.mix.instructions:
                found[row.key] = row
    return found


def sections(
    kernel: str, machines: Mapping[str, str], evidence: Evidence, measurements: Sequence[Measurement]
) -> list[Section]:
    """Return a section for each machine with evidence of a kernel.

    It says what limits the points, which counters are missing and why, which kernels a call launches, and
    which points were measured again since the evidence was taken.
    """
    found: list[Section] = []
    for slug, name in machines.items():
        place = kernel, slug
        own = [row for row in measurements if (row.point.kernel, row.origin.gpu) == place]
        every_counter = evidence.counters.get(place, [])
        every_profile = [row for row in evidence.profiles.get(place, []) if row.status == "ok"]
        outdated = _outdated([*(row for row in every_counter if row.status == "ok"), *every_profile], own)
        counters = [row for row in every_counter if row.key not in outdated]
        profiles = [row for row in every_profile if row.key not in outdated]
        blocks: list[Any] = []
        if counted := [row for row in longest(counters).values() if row.point]:
            timed = {row.key: row for row in own if row.outcome.timing}
            code = native(evidence.code.get(place, []))
            title = f"{kernel}: what limits it on {name}"
            blocks += [_table(title, counted, code, timed), Text(NOTE, "note")]
        if rules := _rules(counted):
            blocks += [Text("The most promising rules of ncu:"), Items(rules)]
        missing = dict.fromkeys(row.sentence for row in counters if row.status != "ok")
        blocks += [Text(f"Counters {sentence}.", "note") for sentence in missing]
        if profiles:
            sentences = [f"{_place(row)}: {row.sentence}" for row in profiles]
            blocks += [Text("What a call does, by torch.profiler:"), Items(sentences)]
        if outdated:
            left = "; ".join(dict.fromkeys(outdated.values()))
            blocks.append(Text(f"{OUTDATED}: {left}.", "note"))
        if blocks:
            title = f"Why: what limits it on {name}"
            found.append(Section(title, blocks, {"gpu": slug}, is_folded=True, is_open=not found, look="why"))
    return found


def _outdated(rows: Iterable[Joined], measurements: Iterable[Measurement]) -> dict[str | None, str]:
    """Return the points that the ledger holds under another key, in words, by the old key.

    They were measured again from another source, in another environment or with other options.
    """
    keys: dict[Point | None, str | None] = {row.point: row.key for row in measurements}
    return {row.key: _place(row) for row in rows if keys.get(row.point, row.key) != row.key}


NUMBERS = (
    *("us", "memory %", "compute %", "DRAM GB/s", "L2 hit %", "occupancy %"),
    *("registers", "spilled B", "waves"),
)


def _table(
    title: str, rows: Sequence[CounterRow], code: Mapping[str, CodeRow], timed: Mapping[str, Measurement]
) -> TextTable:
    """Return a table with a line for the longest kernel of each counted point."""
    lines: list[list[str]] = []
    about: list[dict[str, str]] = []
    for row in sorted(rows, key=_order):
        assert row.point is not None, "only points are counted"
        lines.append(_cells(row, row.point, code.get(str(row.key)), timed.get(str(row.key))))
        known = {"words": notation.words(row.point), "provider": row.point.provider}
        about.append({**known, "sort": str(len(about))})
    first = ("problem", "configuration", "what limits it", "role", *NUMBERS[:6])
    return TextTable(
        title, (*first, "of at most", *NUMBERS[6:], "est. speedup %"), lines, numbers=NUMBERS, about=about
    )


def _cells(row: CounterRow, point: Point, code: CodeRow | None, measured: Measurement | None) -> list[str]:
    spilled = code.mix.spilled_bytes if code and code.mix else None
    timing = measured.outcome.timing if measured else None
    most, best = row.theoretical_occupancy_pct, _most_promising(row)
    limit = f" ({row.limited_by})" if most and most < 100 and row.limited_by else ""
    return [
        f"{notation.extent(point)} {notation.words(point)}".strip(),
        notation.label(point),
        row.sentence,
        row.role,
        number(timing.median_us if timing else None),
        number(row.memory_throughput_pct),
        number(row.compute_throughput_pct),
        number(row.dram_gbps),
        number(row.l2_hit_pct),
        number(row.achieved_occupancy_pct),
        number(most) + limit,
        "" if row.registers is None else f"{row.registers:.0f}",
        "" if spilled is None else str(spilled),
        number(row.waves_per_sm),
        number(row.estimated_speedup_pct) + (f" ({best[1].name})" if best else ""),
    ]


def _most_promising(row: CounterRow) -> tuple[float, NcuRule] | None:
    """Return the gain in percent and the rule of ncu with the largest estimated gain, if any."""
    gains = [(rule.gain_pct, rule) for rule in row.rules if rule.gain_pct is not None]
    return max(gains, key=lambda gain: gain[0], default=None)


def _rules(rows: Iterable[CounterRow]) -> list[str]:
    """Return the text of each most promising rule once, for the point with the largest gain."""
    found: dict[str, tuple[float, NcuRule, CounterRow]] = {}
    for row in rows:
        most = _most_promising(row)
        if most and (most[1].name not in found or most[0] > found[most[1].name][0]):
            found[most[1].name] = (*most, row)
    return [
        f"{rule.name}, up to {number(gain)} % ({_place(row)}): "
        + textwrap.shorten(re.sub(r" ?\(?https?://\S+", "", rule.text), MOST_CHARACTERS, placeholder=" …")
        for gain, rule, row in sorted(found.values(), key=lambda one: -one[0])
    ]


def _place(row: Joined) -> str:
    """Return a point in words: its configuration and problem."""
    if row.point is None:
        return row.kernel
    return f"{notation.label(row.point)}, {notation.extent(row.point)} {notation.words(row.point)}".rstrip()


def _order(row: CounterRow) -> tuple[Any, ...]:
    """Return the sort key of a row: the problem's words and numbers, then the role."""
    assert row.point is not None, "only points are counted"
    _, _, words, numbers, _ = order(row.point)
    return (words, numbers, row.role)
