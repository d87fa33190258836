"""What a function asks of a GPU once its launch is known, for a row of generated code; and who says so."""

from __future__ import annotations

from functools import cache
from typing import Any

from pipeline import ROOT
from pipeline.inspection.disassembler import Analysis, find_tools
from pipeline.inspection.occupancy import occupancy
from pipeline.inspection.sass import mix
from pipeline.points import closure
from pipeline.points.frozen import digest


def used(analysis: Analysis, architecture: str, threads: int, shared: int) -> dict[str, Any]:
    """The numbers of a CodeRow that follow from a function and its launch; ``shared`` is what the launch asks
    for on top."""
    resources = analysis.resources
    total = resources.shared + shared
    limits = occupancy(architecture, resources.registers, total, threads)
    return {
        "registers": resources.registers,
        "shared": total,
        "stack": resources.stack,
        "threads": threads,
        "mix": mix(analysis.instructions),
        **(limits.model_dump() if limits else {}),
    }


READERS = (
    *(("usage.py", "used"), ("programs.py", "compile_points"), ("inductor.py", "generated")),
    *(("inductor.py", "kernel_names"), ("library.py", "library_of"), ("library.py", "CudaLibrary")),
    *(("launched.py", "reported"), ("launched.py", "joined")),
    *(("listing.py", "of_ptx"), ("listing.py", "of_sass"), ("listing.py", "heading")),
)
"""The definitions, below ``pipeline/inspection/``, that make a row and its texts; with all that they reach there."""

NOT_READERS = ("pipeline.execution", "pipeline.machine", "pipeline.points", "pipeline.toolchain", "kernels")
"""What plans, builds and calls is in a row's key, or says what to read and not what it says."""


@cache
def reader() -> str:
    """The digest of the code here that compiles and takes apart, and of the tools' version: a row that was made by
    another says other things of the same function. Raises UserError when there are no tools."""
    folder = ROOT / "pipeline"
    entries = [(folder / "inspection" / file, name) for file, name in READERS]
    found = closure.digest_of(closure.closure(entries, {"pipeline": folder}, NOT_READERS))
    return digest([found, find_tools().version])
