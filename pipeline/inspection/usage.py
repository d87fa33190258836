"""What a function asks of a GPU once its launch is known, for a row of generated code."""

from __future__ import annotations

from typing import Any

from pipeline.inspection.disassembler import Resources
from pipeline.inspection.occupancy import occupancy
from pipeline.store.evidence import Mix


def used(resources: Resources, mix: Mix, architecture: str, threads: int, shared: int) -> dict[str, Any]:
    """The numbers of a CodeRow that follow from a function and its launch; ``shared`` is what the launch asks
    for on top."""
    total = resources.shared + shared
    limits = occupancy(architecture, resources.registers, total, threads)
    return {
        "registers": resources.registers,
        "shared": total,
        "stack": resources.stack,
        "threads": threads,
        "mix": mix,
        **(limits.model_dump() if limits else {}),
    }
