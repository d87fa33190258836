"""Write annotated listings: a function's code in blocks, each below its source line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from ..points import notation
from ..store.evidence import CodeRow
from .ptx import PtxFunction
from .ptx import note as ptx_note
from .sass import Instruction, is_constant_move, mix
from .sources import SourceLine, Sources

Row = tuple[SourceLine | None, str, str]
"""A line of code: its source line, its text and a note."""


def of_ptx(entry: PtxFunction, sources: Sources) -> list[str]:
    """List the PTX of an entry, from its declarations to the last statement."""
    registers = ", ".join(f"{count} {kind}" for kind, count in entry.registers.items())
    head = [
        f".entry {entry.symbol}({', '.join(entry.parameters)}) {' '.join(entry.directives)}".rstrip(),
        f"declares virtual registers: {registers}",
    ]
    return head + blocks(((one.line, one.text, ptx_note(one)) for one in entry.body), sources)


def of_sass(instructions: Sequence[Instruction], sources: Sources) -> list[str]:
    """List SASS, each instruction with its offset. A remark names the files of inlined code."""
    foreign = {
        sources.relative(one.line.file)
        for one in instructions
        if one.line and not sources.below(one.line.file)
    }
    remark = (
        f"(code inlined from {', '.join(sorted(foreign))} stands under the lines of that file: the line "
        "table of machine code does not name the calling lines of the kernel, PTX does)"
    )
    rows = (
        (one.line, f"{one.offset:05x} {one.predicate:>5} {one.opcode} {one.operands}", sass_note(one))
        for one in instructions
    )
    return [remark] * bool(foreign) + blocks(rows, sources)


def of_lines(instructions: Sequence[Instruction], sources: Sources) -> list[str]:
    """Count the SASS instructions of each source line, by kind. The line with the most is the first."""
    found: dict[SourceLine | None, list[Instruction]] = {}
    for one in instructions:
        found.setdefault(one.line, []).append(one)
    lines = []
    for line, some in sorted(found.items(), key=lambda item: -len(item[1])):
        where = f"{sources.place(line)}    {sources.text(line)}" if line else "(no source line)"
        counts = (f"{value} {name}" for name, value in mix(some).to_dict().items() if value)
        lines += [where.rstrip(), f"    {', '.join(counts)}"]
    return lines


def sass_note(instruction: Instruction) -> str:
    """Return a note on an instruction, or an empty string if it is self-explanatory."""
    when = ""
    if instruction.predicate and instruction.name not in ("BRA", "EXIT"):
        name = instruction.predicate.lstrip("@!")
        when = f", only where {name} is {'false' if '!' in instruction.predicate else 'true'}"
    if instruction.space:
        access = "store" if instruction.stores else "load"
        return f"{instruction.space} {access} of {max(1, instruction.bits // 8)} bytes per thread{when}"
    if is_constant_move(instruction):
        return "a constant"
    return next((f"{text}{when}" for names, text in NOTES if instruction.name in names), "")


NOTES = (
    (("SHFL",), "reduction: exchange within the warp"),
    (("REDUX", "CREDUX"), "reduction: over the warp in one instruction"),
    (("BAR", "SYNCS"), "barrier: the block's warps wait for each other"),
    (("MUFU",), "special function unit"),
    (("FFMA", "FFMA2", "HFMA2", "DFMA"), "multiply and add in one"),
)


def blocks(rows: Iterable[Row], sources: Sources) -> list[str]:
    """Group consecutive rows with the same source line below the text of that line."""
    lines = []
    for line, group in groupby(rows, key=lambda row: row[0]):
        lines.append("")
        where = f"{sources.place(line)}    {sources.text(line)}" if line else "(no source line)"
        lines.append(where.rstrip())
        for _, text, note in group:
            lines.append(f"    {text:<72} // {note}" if note else f"    {text}")
    return lines


def heading(row: CodeRow) -> list[str]:
    """Return the head of a listing: the function, its point and its resources."""
    lines = [f"{row.kernel}/{_origin(row)}, sm_{row.architecture}: {row.function} ({row.compiler})"]
    if row.mix is None:
        return lines
    if row.strategy is not None:
        lines.append(row.strategy)
    spilled = row.mix.spill_store_bytes + row.mix.spill_load_bytes
    lines.append(
        f"{row.registers} registers per thread, {row.shared} bytes of shared memory, {row.stack} bytes of "
        f"stack, {spilled} bytes spilled"
    )
    if row.occupancy is not None:
        lines.append(
            f"occupancy {row.occupancy:.0%}: {row.blocks_per_sm} blocks of {row.threads} threads on a "
            f"multiprocessor, limited by {row.limited_by}"
            + ("" if row.launch_known else " (without the shared memory that a launch may ask for)")
        )
    counts = ", ".join(f"{value} {name}" for name, value in row.mix.to_dict().items() if value)
    lines.append(f"instructions by kind: {counts}")
    return lines


def _origin(row: CodeRow) -> str:
    """Return the provider, the problem's words and the configuration for which a function was compiled, or
    the source file of a function that belongs to no point."""
    if row.point is None:
        return str(row.source)
    parts = [row.point.provider, notation.words(row.point), notation.configuration(row.point)]
    return " ".join(filter(None, parts))
