"""Read Nsight Compute's CSV pages. Counters become numbers of rows, joined to points by NVTX range; ``bound``
finds the limit of a kernel.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from ..store.evidence import NcuRule
from .library import known_name

csv.field_size_limit(2**31 - 1)  # a template's name may exceed csv's default limit of 131072 characters

METRICS: dict[str, tuple[str, float]] = {
    "duration_us": ("gpu__time_duration.sum", 1e-3),
    "compute_throughput_pct": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "memory_throughput_pct": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "dram_throughput_pct": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "dram_read_bytes": ("dram__bytes_read.sum", 1),
    "dram_write_bytes": ("dram__bytes_write.sum", 1),
    "l1_hit_pct": ("l1tex__t_sector_hit_rate.pct", 1),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct", 1),
    "achieved_occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "theoretical_occupancy_pct": ("sm__maximum_warps_per_active_cycle_pct", 1),
    "registers": ("launch__registers_per_thread", 1),
    "shared_static_bytes": ("launch__shared_mem_per_block_static", 1),
    "shared_dynamic_bytes": ("launch__shared_mem_per_block_dynamic", 1),
    "grid_size": ("launch__grid_size", 1),
    "block_size_threads": ("launch__block_size", 1),
    "waves_per_sm": ("launch__waves_per_multiprocessor", 1),
}
"""The metric for each field of a row, and the factor from ncu's base unit to the field's unit."""

LIMITS = {
    "blocks": "launch__occupancy_limit_blocks",
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "barriers": "launch__occupancy_limit_barriers",
}
"""Metrics that count the blocks a multiprocessor could hold if the named resource were the only limit."""

STALL = re.compile(r"smsp__average_warps_issue_stalled_(?!\w*_not_issued_)(\w+)_per_issue_active\.ratio")
READY = frozenset({"selected", "not_selected"})
"""The states of a warp that is not stalled: it issues an instruction or could issue one."""

SECTOR_BYTES = 32
BUSY_PCT = 60.0
"""The percentage of peak from which a unit counts as a kernel's limit, as in ncu's own rules."""


NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)
"""A number as ncu writes it, with or without thousands separators."""

LARGEST = 1e15
"""Larger numbers are errors: 1e15 is eleven days in nanoseconds, or a petabyte."""

TIMES = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
BYTES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
"""Factors from a unit to the base unit (nanoseconds, bytes), by the unit's prefix."""

Line = dict[str, str]


def cells(text: str) -> Iterator[list[str]]:
    """Yield the rows of a CSV page, beginning with the column names. Skips ncu's remarks before them, empty
    lines and invalid rows, such as the last row of a truncated page."""
    begin = re.search(r'^"ID"', text, re.MULTILINE)
    rows = csv.reader(io.StringIO("" if begin is None else text[begin.start() :], newline=""), strict=True)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:
            continue
        if row:
            yield row


def lines(text: str) -> tuple[list[Line], Line]:
    """Return the rows of a CSV page as dictionaries by column, and the units of the columns. Skips rows with
    more cells than columns."""
    names, *rows = list(cells(text)) or [[""]]
    if names[0] != "ID":
        return [], {}
    found = [dict(zip(names, row, strict=False)) for row in rows if len(row) <= len(names)]
    units = next((line for line in found if not line["ID"].strip()), {})
    return [line for line in found if line["ID"].strip()], units


def by_point(raw: str, details: str) -> dict[str, list[dict[str, Any]]]:
    """Return the numbers of each kernel launch in a report's pages ``raw`` and ``details``, in order, by the
    point's key in the NVTX range around it. Skips kernels outside such ranges."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line, numbers in _launches(raw, details):
        match = next((m for cell in _ranges(line) if (m := re.search(r"point:([0-9a-f]{16})", cell))), None)
        if match is not None:
            made = found.setdefault(match[1], [])
            made.append({"launch": len(made), **numbers})
    return found


def by_function(raw: str, details: str) -> list[list[dict[str, Any]]]:
    """Return the numbers of all kernel launches in a report's pages: a list for each function, with its
    longest launch first. The function that took the most time is the first."""
    found: dict[str | None, list[dict[str, Any]]] = {}
    for _, numbers in _launches(raw, details):
        found.setdefault(numbers["demangled"], []).append(numbers)
    ordered = [sorted(launches, key=_us, reverse=True) for launches in found.values()]
    return sorted(ordered, key=lambda launches: sum(map(_us, launches)), reverse=True)


def _us(numbers: Mapping[str, Any]) -> float:
    return numbers["duration_us"] or 0.0


def _launches(raw: str, details: str) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Yield the line of each kernel launch in the page ``raw``, with its numbers and rules."""
    rules: dict[str, list[NcuRule]] = {}
    for line in lines(details)[0]:
        if line.get("Rule Name"):
            rules.setdefault(line["ID"], []).append(_rule(line))
    launches, units = lines(raw)
    for line in launches:
        numbers = {name: _if_sane(number) for name, number in _numbers(line, units).items()}
        yield line, {**numbers, **_gain(numbers["duration_us"], rules.get(line["ID"], []))}


def of_points(page: str, keys: Collection[str]) -> str:
    """Return a page with only the rows of these points, and the column names and units."""
    rows = list(cells(page))
    if not rows:
        return page
    marks = [f"point:{key}" for key in keys]
    # The rows of column names and units have no numeric ID.
    kept = [
        row for row in rows if not row[0].strip().isdigit() or any(m in cell for cell in row for m in marks)
    ]
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(kept)
    return text.getvalue()


def _ranges(line: Line) -> Iterator[str]:
    """Return the cells that hold NVTX ranges."""
    return (cell for name, cell in line.items() if name and "Range" in name and cell)


def value(line: Mapping[str, str], name: str, units: Mapping[str, str] | None = None) -> float | None:
    """Return a number of a line in base units. Returns None for a missing column, a text such as ``n/a`` or
    ``nan``, a time in an unknown unit, or a number above ``LARGEST``."""
    text = line.get(name, "").strip()
    scale = _scale(name, (units or {}).get(name, "").strip())
    if scale is None or not NUMBER.fullmatch(text):
        return None
    found = float(text.replace(",", "")) * scale
    return found if found <= LARGEST else None


def _if_sane(number: Any) -> Any:
    """Return the number, or None if it is above ``LARGEST``."""
    return None if isinstance(number, float) and number > LARGEST else number


def _scale(name: str, unit: str) -> float | None:
    """Return the factor from a column's unit to the base unit, or None for a time in an unknown unit."""
    if seconds := re.fullmatch(r"([num]?)s(?:ec|econd)?", unit):
        return TIMES[seconds[1]]
    if many := re.fullmatch(r"([KMGT]?)byte(?:/.*)?", unit):
        return BYTES[many[1]]
    return None if unit and "__time_" in name else 1.0


def _numbers(line: Line, units: Line) -> dict[str, Any]:
    numbers: dict[str, Any] = {"demangled": line.get("Kernel Name"), "function": None}
    if line.get("Kernel Name"):
        numbers["function"] = known_name(line["Kernel Name"])

    def counted(name: str) -> float | None:
        return value(line, name, units)

    for field, (metric, factor) in METRICS.items():
        found = counted(metric)
        numbers[field] = None if found is None else found * factor
    moved = [numbers[name] for name in ("dram_read_bytes", "dram_write_bytes") if numbers[name] is not None]
    numbers["dram_gbps"] = None
    per_second = counted("dram__bytes.sum.per_second")
    if per_second is not None:
        numbers["dram_gbps"] = per_second / 1e9
    elif len(moved) == 2 and numbers["duration_us"]:
        numbers["dram_gbps"] = sum(moved) / numbers["duration_us"] / 1e3
    for field, op in (("sectors_per_load", "ld"), ("sectors_per_store", "st")):
        sectors = counted(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum")
        requests = counted(f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum")
        numbers[field] = sectors / requests if sectors is not None and requests else None
    local = [counted(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum") for op in ("ld", "st")]
    known = [sectors for sectors in local if sectors is not None]
    numbers["local_bytes"] = SECTOR_BYTES * sum(known) if len(known) == len(local) else None
    limits = {name: counted(metric) for name, metric in LIMITS.items() if line.get(metric)}
    blocks = [found for found in limits.values() if found is not None]
    if limits and len(blocks) == len(limits):
        numbers["limited_by"] = " and ".join(name for name, found in limits.items() if found == min(blocks))
    waits = ((m[1], counted(name)) for name in line if (m := STALL.fullmatch(name)))
    stalls = {reason: cycles for reason, cycles in waits if cycles}
    numbers["stalls"] = dict(sorted(stalls.items(), key=lambda item: -item[1]))
    return numbers


def _rule(line: Line) -> NcuRule:
    return NcuRule(
        name=line["Rule Name"],
        kind=line.get("Rule Type") or "",
        text=" ".join((line.get("Rule Description") or "").split()),
        speedup_pct=value(line, "Estimated Speedup"),
        scope=line.get("Estimated Speedup Type") or "",
    )


def _gain(duration_us: float | None, rules: Sequence[NcuRule]) -> dict[str, Any]:
    """Return the rules, the largest speedup that one of them estimates for the whole kernel, and the
    microseconds that it would save."""
    most = max((rule.gain_pct for rule in rules if rule.gain_pct is not None), default=None)
    saved = None if most is None or duration_us is None else duration_us * most / 100
    return {"rules": tuple(rules), "estimated_speedup_pct": most, "runtime_improvement_us": saved}


def bound(numbers: Mapping[str, Any]) -> tuple[Literal["memory", "compute", "latency", "grid"] | None, str]:
    """Return the limit of a kernel, and a sentence with the numbers. The limit is None if throughputs were
    not counted.
    """
    memory, compute = numbers.get("memory_throughput_pct"), numbers.get("compute_throughput_pct")
    if memory is None or compute is None:
        return None, "throughputs were not counted; sets=basic counts them"
    both = f"memory throughput {memory:.0f} %, compute throughput {compute:.0f} %"
    waves = numbers.get("waves_per_sm")
    if max(memory, compute) >= BUSY_PCT:
        limit: Literal["memory", "compute"] = "memory" if memory >= compute else "compute"
        return limit, f"{limit} limits it: {both}"
    if waves is not None and waves < 1:
        return "grid", f"its grid is too small: {waves:.2g} waves, {both}"
    stalls: Mapping[str, float] = numbers.get("stalls") or {}
    longest = next((stall for stall in stalls.items() if stall[0] not in READY), None)
    waiting = ""
    if longest:
        reason, cycles = longest
        waiting = f", warps wait most for {reason.replace('_', ' ')} ({cycles:.1f} cycles per instruction)"
    achieved = numbers.get("achieved_occupancy_pct")
    occupied = "" if achieved is None else f", occupancy {achieved:.0f} %"
    return "latency", f"latency limits it: {both}{occupied}{waiting}"
