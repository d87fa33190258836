"""Theoretical occupancy: how many warps of a kernel a multiprocessor can hold, and its limit.

The limits are those of the table "Technical Specifications per Compute Capability" in the CUDA C++
Programming Guide; the granularities those of the occupancy calculator that comes with the CUDA toolkit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import ceil

from kernel_pipeline.contract import Gpu
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.environment import Environment

REGISTERS = 65536
"""32-bit registers of a multiprocessor, on every architecture here."""

REGISTER_UNIT = 256
"""Registers are given to a warp in units of so many."""

WARP_UNIT = 4
"""A block's warps are spread over a multiprocessor's four schedulers, each with a share of the registers."""

SHARED_UNIT = 128
"""Shared memory is given to a block in units of so many bytes."""

RESERVED_SHARED = 1024
"""Bytes of shared memory that the system keeps of every block."""


@dataclass(frozen=True)
class MultiprocessorLimits:
    """The most warps, blocks and bytes of shared memory of a multiprocessor."""

    warps: int
    blocks: int
    shared: int


LIMITS = {
    "80": MultiprocessorLimits(64, 32, 164 * 1024),
    "86": MultiprocessorLimits(48, 16, 100 * 1024),
    "87": MultiprocessorLimits(48, 16, 164 * 1024),
    "89": MultiprocessorLimits(48, 24, 100 * 1024),
    "90": MultiprocessorLimits(64, 32, 228 * 1024),
    "100": MultiprocessorLimits(64, 32, 228 * 1024),
    "103": MultiprocessorLimits(64, 32, 228 * 1024),
    "110": MultiprocessorLimits(48, 24, 228 * 1024),
    "120": MultiprocessorLimits(48, 24, 100 * 1024),
    "121": MultiprocessorLimits(48, 24, 100 * 1024),
}
"""By compute capability without the dot."""


class Occupancy(Record):
    """Blocks that a multiprocessor holds at once, their share of its warps, and the limit: warps, blocks,
    registers or shared memory, several if they give the same number."""

    blocks_per_sm: int
    occupancy: float
    limited_by: str


def occupancy(architecture: str, registers: int, shared: int, threads: int) -> Occupancy | None:
    """The occupancy of blocks of so many threads, registers a thread and bytes of shared memory (without
    the system's reserve); None for an architecture whose limits are not known here."""
    limits = LIMITS.get(architecture.rstrip("af"))
    if limits is None:
        return None
    warps = ceil(threads / 32)
    a_warp = _up(registers * 32, REGISTER_UNIT)
    by_registers = REGISTERS // a_warp // WARP_UNIT * WARP_UNIT // warps if a_warp else limits.blocks
    blocks = {
        "registers": by_registers,
        "shared memory": limits.shared // _up(shared + RESERVED_SHARED, SHARED_UNIT),
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }
    fewest = min(blocks.values())
    return Occupancy(
        blocks_per_sm=fewest,
        occupancy=fewest * warps / limits.warps,
        limited_by=" and ".join(name for name, number in blocks.items() if number == fewest),
    )


def limits_of(environment: Environment) -> Gpu | None:
    """The limits of a GPU on another host, by its compute capability and its L2 cache; None for a CPU. Its
    number of multiprocessors is not recorded: any provider's need is met."""
    if environment.compute_capability is None:
        return None
    major, minor = map(int, environment.compute_capability.split("."))
    known = LIMITS.get(f"{major}{minor}")
    shared = sys.maxsize if known is None else known.shared - RESERVED_SHARED
    return Gpu((major, minor), sys.maxsize, shared, environment.l2_bytes or 0)


def _up(value: int, unit: int) -> int:
    return ceil(value / unit) * unit
