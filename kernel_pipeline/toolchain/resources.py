"""The resources of each compiled CUDA function, as ptxas reports them."""

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
    """The resources of a ``__global__`` function compiled for one architecture; sizes are in bytes.

    ``shared`` is static shared memory; the compiler does not know the dynamic shared memory of a launch.
    ``constant`` is None for architectures for which ptxas does not report it (9.0 and newer).
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
    """A report on a kernel's extensions as one machine built them, without time, host name or paths.

    ``remarks`` are sentences on sources or architectures that were left out. ``made_of`` are the inputs of
    each source's library.
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
    """Return the functions of a built CUDA source, sorted by name and architecture."""
    log = place.target(source, ".log").read_text()
    return parse(log, place.name, str(place.source(source)))


def parse(log: str, kernel: str, source: str) -> list[FunctionResources]:
    """Return the functions in the output of ``nvcc -Xptxas=-v``."""
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
    """Return a function's name with its template arguments, without its result type and parameters.

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
    # c++filt writes a bool argument as (bool)1 and an int argument as 4; cu++filt writes both with a type.
    return re.sub(r"\((?:unsigned )?(?:int|bool|long)\)", "", demangled[start:end])


def is_of_today(
    place: Place, sources: Sequence[str], known: BuildReport, architectures: Sequence[str] | None
) -> bool:
    """Whether a report is up to date for these sources. A report with remarks is not, because sources or
    architectures that it left out may be available now. Raises as ``extension.build`` does before it
    compiles."""
    if known.remarks or not sources or set(known.made_of) != set(sources):
        return False
    return known.torch == installed_torch().version and all(
        made_today(place, source, known, architectures) is not None for source in sources
    )


def made_today(
    place: Place, source: str, known: BuildReport, architectures: Sequence[str] | None = None
) -> Made | None:
    """Return the inputs of a source's library from the report if a build now would use the same inputs, else
    None. Raises as ``extension.build`` does before it compiles."""
    made = known.made_of.get(source)
    if made is None or not extension.would_be_made_of(place, source, made, architectures):
        return None
    return made
