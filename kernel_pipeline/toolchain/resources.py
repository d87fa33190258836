"""What each compiled CUDA function asks of a multiprocessor, as ptxas tells it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import field

from ..machine.fingerprint import demangle, find_nvcc
from ..machine.torch_install import installed_torch
from ..records.base import Record
from . import extension
from .extension import Made, Place


class FunctionResources(Record):
    """One ``__global__`` function compiled for one architecture; sizes in bytes.

    ``shared`` is static shared memory: what a launch asks for on top is not known to the compiler.
    ``constant`` is None for an architecture for which ptxas does not tell it (9.0 and newer).
    """

    kernel: str
    source: str
    function: str
    symbol: str
    architecture: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int
    constant: int | None


class BuildReport(Record):
    """A kernel's extensions as one machine built them: no time, host name or path of that machine.

    ``remarks`` are sentences on what was left out and why. ``made_of`` says it by source.
    """

    kernel: str
    torch: str
    nvcc: str | None
    cxx: str | None
    architectures: tuple[str, ...]
    remarks: tuple[str, ...]
    functions: tuple[FunctionResources, ...]
    made_of: dict[str, Made] = field(default_factory=dict)


def resources(place: Place, source: str) -> list[FunctionResources]:
    """The functions of a CUDA source that was built, by name and architecture."""
    log = place.target(source, ".log").read_text()
    return parse(log, place.name, str(place.source(source)))


def parse(log: str, kernel: str, source: str) -> list[FunctionResources]:
    """The functions in the output of ``nvcc -Xptxas=-v``."""
    found = []
    for block in log.split("Compiling entry function ")[1:]:
        entry = re.match(r"'(\S+)' for '(\S+)'", block)
        used = re.search(r"Used (\d+) registers(.*)", block)
        assert entry and used, f"ptxas -v did not say what a function uses: {block}"
        symbol, architecture = entry.groups()
        frame = re.search(
            rf"Function properties for {re.escape(symbol)}\s+"
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
            block,
        )
        assert frame, f"ptxas -v did not say what a function spills: {block}"
        shared = re.search(r"(\d+) bytes smem", used[2])
        constant = re.findall(r"(\d+) bytes cmem", used[2])
        found.append(
            FunctionResources(
                kernel=kernel,
                source=source,
                function=symbol,
                symbol=symbol,
                architecture=architecture,
                registers=int(used[1]),
                shared=int(shared[1]) if shared else 0,
                stack=int(frame[1]),
                spill_stores=int(frame[2]),
                spill_loads=int(frame[3]),
                constant=sum(map(int, constant)) if constant else None,
            )
        )
    names = demangle(sorted({row.symbol for row in found}), find_nvcc())
    named = (row.replace(function=short(names[row.symbol])) for row in found)
    return sorted(named, key=lambda row: (row.function, len(row.architecture), row.architecture))


def short(demangled: str) -> str:
    """A function's name with its template arguments, without its result and parameters.

    ``void softmax::rows<float, 4>(float const*, float*, long)`` becomes ``softmax::rows<float, 4>``.
    """
    depth = 0
    start, end = 0, len(demangled)
    for i, character in enumerate(demangled):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif character == " " and depth == 0 and start == 0:
            start = i + 1
        elif character == "(" and depth == 0:
            end = i
            break
    # c++filt spells a bool argument (bool)1 and an int one 4; cu++filt spells both with their type.
    return re.sub(r"\((?:unsigned )?(?:int|bool|long)\)", "", demangled[start:end])


def is_of_today(
    place: Place, sources: Sequence[str], known: BuildReport, architectures: Sequence[str] | None
) -> bool:
    """Whether a report says what a build of these sources would say now. One with remarks may not: what was
    left out may be there now. Raises what ``extension.build`` raises before it compiles anything."""
    if known.remarks or not sources or set(known.made_of) != set(sources):
        return False
    return known.torch == installed_torch().version and all(
        made_today(place, source, known, architectures) is not None for source in sources
    )


def made_today(
    place: Place, source: str, known: BuildReport, architectures: Sequence[str] | None = None
) -> Made | None:
    """What the library of a source is made of, if a build now would make it of what the report names; else
    None. Raises what ``extension.build`` raises before it compiles anything."""
    made = known.made_of.get(source)
    if made is None or not extension.would_be_made_of(place, source, made, architectures):
        return None
    return made
