"""Parse PTX into its entries, and their bodies into statements with source lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from .sources import REPOSITORY, SourceLine, Sources


@dataclass(frozen=True)
class Statement:
    """One line of a body: predicate (``@%p1``, ``@!%p1``, or empty), opcode, whole text, and source line. A
    label or a declaration has no opcode."""

    predicate: str
    opcode: str
    text: str
    line: SourceLine | None


@dataclass(frozen=True)
class PtxFunction:
    """A ``.entry``: symbol, types of its parameters, directives before its body (``.reqntid 256``), number of
    declared virtual registers by type, and body. ptxas maps virtual registers to physical registers."""

    symbol: str
    parameters: tuple[str, ...]
    directives: tuple[str, ...]
    registers: dict[str, int]
    body: tuple[Statement, ...]

    @property
    def most_threads(self) -> int | None:
        """The largest block that the launch bounds allow, in threads, or None without launch bounds."""
        for directive in self.directives:
            if match := re.match(r"\.(?:maxntid|reqntid)\s+(.+)", directive):
                return prod(int(number) for number in re.findall(r"\d+", match[1]))
        return None


def parse(text: str, sources: Sources = REPOSITORY) -> dict[str, PtxFunction]:
    """Parse a PTX module. Returns its entries by symbol."""
    files = {int(number): path for number, path in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M)}
    found = {}
    for match in re.finditer(r"^\.(?:visible|weak)? *\.?entry (\S+?)\(", text, re.MULTILINE):
        begin = text.index("\n{", match.end())
        end = text.index("\n}", begin)
        head, body = text[match.end() : begin], text[begin + 2 : end]
        parameters, _, directives = head.partition("\n)")
        found[match[1]] = PtxFunction(
            symbol=match[1],
            parameters=tuple(re.findall(r"\.param\s+(?:\.align \d+ )?\.(\w+)", parameters)),
            directives=tuple(line.strip() for line in directives.splitlines() if line.strip()),
            registers={t: int(n) - 1 for t, n in re.findall(r"\.reg \.(\w+)\s+%\w+<(\d+)>", body)},
            body=tuple(_statements(body, files, sources)),
        )
    return found


def _statements(body: str, files: dict[int, str], sources: Sources) -> Iterator[Statement]:
    named: dict[str, list[str]] = {}
    for path in files.values():
        named.setdefault(path.rpartition("/")[2], []).append(path)
    line: SourceLine | None = None
    for row in body.splitlines():
        text = " ".join(row.split())
        if place := re.match(r"\.loc\s+(\d+) (\d+)", text):
            numbered = [place.groups(), *re.findall(r"inlined_at (\d+) (\d+)", text)]
            chain = [(files.get(int(file), "?"), number) for file, number in numbered]
            if len(chain) == 1:
                # Triton writes the caller in a comment, `@[ triton.py:28:36 ]`, without the file's folder.
                callers = re.findall(r"@\[ ([^\s:]+):(\d+):\d+", text)
                chain += [(named[file][0], n) for file, n in callers if len(named.get(file, ())) == 1]
            # Line 0 means that there is no source line.
            line = sources.own(SourceLine(file, int(number)) for file, number in chain if number != "0")
        elif text and not text.startswith((".reg", "//")):
            match = re.match(r"(@!?%\w+\s+)?([a-z][\w:]*(?:\.[\w:]+)*)\s", text)
            predicate, opcode = match.groups(default="") if match else ("", "")
            yield Statement(predicate.strip(), opcode, text, line)


def note(statement: Statement) -> str:
    """Return a note on an instruction, or an empty string if it is self-explanatory."""
    opcode = statement.opcode
    if match := re.match(r"(ld|st)\.(?:\w+\.)*?(global|shared|local)\b", opcode):
        access = {"ld": "load", "st": "store"}[match[1]]
        return f"{match[2]} {access} of {width(opcode)} bytes per thread{_when(statement.predicate)}"
    for pattern, meaning in MEANINGS:
        if re.match(pattern, opcode):
            return meaning + _when(statement.predicate)
    return ""


MEANINGS = (
    (r"shfl\.", "reduction: exchange within the warp"),
    (r"redux\.", "reduction: over the warp in one instruction"),
    (r"bar(rier)?\.", "barrier: the block's warps wait for each other"),
    (r"(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.approx", "special function unit"),
    (r"(w?mma|wgmma|tcgen05)\.", "tensor core"),
    (r"(atom|red)\.", "atomic"),
    (r"cp\.async", "asynchronous copy to shared memory"),
    (r"fma\.", "multiply and add in one"),
)


def _when(predicate: str) -> str:
    if not predicate:
        return ""
    name = predicate.lstrip("@!")
    return f", only where {name} is {'false' if '!' in predicate else 'true'}"


def width(opcode: str) -> int:
    """Return the bytes that a thread's load or store moves."""
    vector = re.search(r"\.v([248])(?=\.|$)", opcode)
    bits = re.findall(r"\.[bfsu](?:16x2|(\d+))(?=\.|$)", opcode)
    return (int(vector[1]) if vector else 1) * int(bits[-1] or 32) // 8
