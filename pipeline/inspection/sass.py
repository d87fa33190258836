"""Parse SASS, the machine code of NVIDIA GPUs, from nvdisasm's text, and count instructions by kind.

The counts are static: an instruction in a loop counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ..store.evidence import Mix
from .sources import REPOSITORY, SourceLine, Sources


@dataclass(frozen=True)
class Instruction:
    """One instruction: offset, predicate (``@!P1``, or empty), opcode, operands and source line."""

    offset: int
    predicate: str
    opcode: str
    operands: str
    line: SourceLine | None

    @cached_property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def bits(self) -> int:
        """The bits that a thread's memory access moves: 32 unless a modifier gives another width."""
        widths = re.findall(r"\.(?:ENL2\.)?[US]?(8|16|64|128|256)(?=\.|$)", self.opcode)
        return int(widths[-1]) if widths else 32

    @property
    def space(self) -> str | None:
        """The memory that the instruction accesses: ``global``, ``shared``, ``local``, or None."""
        return SPACES.get(self.name)

    @property
    def stores(self) -> bool:
        """Whether the memory access is a write."""
        return self.name.startswith("ST") or self.name in ("RED", "REDG")


SPACES = {
    **dict.fromkeys(("LDG", "STG", "LD", "ST", "LDGSTS", "UBLKCP", "UTMALDG", "UTMASTG", "REDG"), "global"),
    **dict.fromkeys(("LDS", "STS", "LDSM", "STSM"), "shared"),
    **dict.fromkeys(("LDL", "STL"), "local"),
}
"""The memory that each opcode accesses. A generic access (LD, ST) is taken as global, because the kernels of
this repository make generic accesses to global memory only."""

FMA = ("FFMA", "FFMA2", "FFMA32I", "HFMA2", "DFMA")
TENSOR = re.compile(r"[BDHIOQ]MMA|[HIQ]GMMA|UTC\w*MMA")
EXCHANGES = ("SHFL", "REDUX", "CREDUX")
BARRIERS = ("BAR", "SYNCS")


@dataclass(frozen=True)
class SassFunction:
    """The instructions of a ``__global__`` function, with its mangled name."""

    symbol: str
    instructions: tuple[Instruction, ...]


def parse(text: str, sources: Sources = REPOSITORY) -> list[SassFunction]:
    """Parse the output of ``nvdisasm -c -gi`` into functions. Raises ValueError if the text has no
    instructions."""
    functions: dict[str, list[Instruction]] = {}
    current: list[Instruction] | None = None
    chain: list[SourceLine] = []
    fresh = False
    for row in text.splitlines():
        if match := re.match(r"\s*\.section\s+\.text\.([^\s,]+)", row):
            current, chain = functions.setdefault(match[1], []), []
        elif match := re.match(r'\s*//## File "(.*?)", line (\d+)', row):
            # The innermost source line comes first. The lines at which it was inlined follow, one per row.
            chain = (
                [*chain, SourceLine(match[1], int(match[2]))]
                if fresh
                else [SourceLine(match[1], int(match[2]))]
            )
            fresh = True
        elif current is not None and (instruction := _instruction(row, sources.own(chain))):
            current.append(instruction)
            fresh = False
    found = [SassFunction(symbol, tuple(_without_padding(rows))) for symbol, rows in functions.items()]
    if not any(function.instructions for function in found):
        raise ValueError("holds no SASS")
    return found


def _instruction(row: str, line: SourceLine | None) -> Instruction | None:
    match = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+\{?\s*(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;", row)
    if match is None:
        return None
    offset, predicate, opcode, operands = match.groups(default="")
    return Instruction(int(offset, 16), predicate.strip(), opcode, operands, line)


def _without_padding(instructions: list[Instruction]) -> Iterator[Instruction]:
    """Drop the assembler's padding after the end of the code: a branch to itself and NOPs."""
    end = len(instructions)
    while end and instructions[end - 1].name == "NOP":
        end -= 1
    if end and instructions[end - 1].name == "BRA" and end < len(instructions):
        end -= 1
    yield from instructions[:end]


def is_constant_move(instruction: Instruction) -> bool:
    """Return whether the instruction is an HFMA2 that only loads a constant."""
    return instruction.name == "HFMA2" and "-RZ, RZ" in instruction.operands


def mix(instructions: Iterable[Instruction]) -> Mix:
    """Count instructions by kind."""
    counts = dict.fromkeys(Mix.__struct_fields__, 0)
    for instruction in instructions:
        counts["instructions"] += 1
        for name in _kinds(instruction):
            counts[name] += 1
        if instruction.space == "local":
            counts[f"spill_{_direction(instruction)}_bytes"] += instruction.bits // 8
    return Mix(**counts)


def _direction(instruction: Instruction) -> str:
    return "store" if instruction.stores else "load"


def _kinds(instruction: Instruction) -> Iterator[str]:
    space, name = instruction.space, instruction.name
    if space == "global":
        bits = min(instruction.bits, 128)
        yield f"global_{_direction(instruction)}s_{bits if bits >= 32 else 'narrow'}"
        if instruction.predicate:
            yield "predicated"
    elif space is not None:
        yield f"{space}_{_direction(instruction)}s"
    elif name in FMA and not is_constant_move(instruction):
        yield "fma"
    elif name == "MUFU":
        yield "special"
    elif name in EXCHANGES:
        yield "exchanges"
    elif name in BARRIERS:
        yield "barriers"
    elif TENSOR.fullmatch(name):
        yield "tensor_core"
