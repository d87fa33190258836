"""The table of generated code for a terminal: one row per program."""

from __future__ import annotations

from collections.abc import Sequence

from ..points import notation
from ..store.evidence import CodeRow
from .tables import TextTable


def label(row: CodeRow) -> str:
    """Return a row's configuration, or the name and threads of a CUDA function."""
    if row.point is None or row.language == "cuda":
        return f"{row.function} {row.threads}t"
    return notation.label(row.point)


def words(row: CodeRow) -> str:
    """Return the words of a row's problem; empty for a CUDA function, whose name has them."""
    return "" if row.point is None or row.language == "cuda" else notation.words(row.point)


def spilled(row: CodeRow) -> int:
    """Return the bytes that a thread spills: its traffic to and from local memory."""
    return row.mix.spilled_bytes if row.mix else 0


COUNTED = ("FMA", "MUFU", "SHFL")
"""Column headings, by SASS name: fused multiply-adds, special functions, and exchanges within a warp."""

WIDTHS = "loads, stores: instructions on global memory that move 128, 64, 32 and fewer bits per thread."

THREADS = "256t: threads per block; if no launch is known, the most that the function was compiled for."


def table(rows: Sequence[CodeRow], title: str) -> TextTable:
    """Return the table of the distinct programs, with the errors as notes. Programs that spill are bold."""
    numbers = ("regs", "shared", "spilled", "occup.", "loads", "stores", *COUNTED)
    launched = {row.artifact for row in rows if row.launch_known}
    found: dict[tuple[object, ...], CodeRow] = {}
    for row in rows:
        is_shown = row.launch_known or row.artifact not in launched
        if row.mix is not None and row.artifact is not None and is_shown:
            found.setdefault((row.artifact, row.threads, row.shared), row)
    lines = []
    functions: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        functions.setdefault((label(row), words(row)), set()).add(row.function)
    for row in found.values():
        assert row.mix is not None, "checked above"
        several = len(functions[label(row), words(row)]) > 1
        m = row.mix
        lines.append(
            [
                f"{label(row)} {row.function}" if several else label(row),
                words(row),
                f"sm_{row.architecture}",
                str(row.registers),
                str(row.shared),
                str(spilled(row)),
                "" if row.occupancy is None else f"{row.occupancy:.0%}",
                f"{m.global_loads_128}/{m.global_loads_64}/{m.global_loads_32}/{m.global_loads_narrow}",
                f"{m.global_stores_128}/{m.global_stores_64}/{m.global_stores_32}/{m.global_stores_narrow}",
                *map(str, (m.fma, m.special, m.exchanges)),
            ]
        )
    notes = [WIDTHS] + [THREADS] * any(row.language == "cuda" for row in rows)
    chosen: dict[tuple[str, str, str], str] = {}
    for row in rows:
        if row.point is not None and row.strategy is not None and row.language != "cuda":
            chosen.setdefault((label(row), row.function, row.strategy), notation.title(row.point))
    notes += [f"{title}, {function}: {values}" for (_, function, values), title in chosen.items()]
    notes += [f"{label(row)} {words(row)}: {row.error}" for row in rows if row.error]
    return TextTable(
        title,
        ("variant", "words", "arch", *numbers),
        lines,
        numbers,
        strong=[place for place, row in enumerate(found.values()) if spilled(row)],
        notes=list(dict.fromkeys(notes)),
    )
