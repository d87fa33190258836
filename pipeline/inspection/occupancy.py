"""Compute theoretical occupancy: the share of a multiprocessor's warps that a kernel can fill, and its limit.

The limits come from the table "Technical Specifications per Compute Capability" in the CUDA C++ Programming
Guide, the allocation granularities from the occupancy calculator of the CUDA toolkit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import ceil

from kernel_pipeline.contract import Gpu
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.environment import Environment

REGISTERS = 65536
"""32-bit registers per multiprocessor, the same on all architectures in LIMITS."""

REGISTER_UNIT = 256
"""The granularity of register allocation, in registers per warp."""

WARP_UNIT = 4
"""The granularity of warp allocation: warps are spread over a multiprocessor's four schedulers, each with a
quarter of the registers."""

SHARED_UNIT = 128
"""The granularity of shared memory allocation, in bytes per block."""

RESERVED_SHARED = 1024
"""Bytes of shared memory that the system reserves in every block."""


@dataclass(frozen=True)
class MultiprocessorLimits:
    """The maximum number of resident warps and blocks on a multiprocessor, and its shared memory in bytes."""

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
"""The limits by compute capability without the dot."""


class Occupancy(Record):
    """The blocks that a multiprocessor holds at once, their share of its warps, and the limit: ``warps``,
    ``blocks``, ``registers`` or ``shared memory``. Limits that give the same number are joined by ``and``."""

    blocks_per_sm: int
    occupancy: float
    limited_by: str


def occupancy(architecture: str, registers: int, shared: int, threads: int) -> Occupancy | None:
    """Return the occupancy of blocks with ``threads`` threads, ``registers`` registers per thread and
    ``shared`` bytes of shared memory, without the bytes that the system reserves. Returns None for an
    architecture that is not in LIMITS."""
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
    """Return the limits of a GPU on another host, or None for a CPU. If an old environment lacks the shared
    memory, it follows from the compute capability; if it lacks the number of multiprocessors, that is a
    number that no kernel exceeds."""
    if environment.compute_capability is None:
        return None
    major, minor = map(int, environment.compute_capability.split("."))
    known = LIMITS.get(f"{major}{minor}")
    shared = environment.shared_memory or (sys.maxsize if known is None else known.shared - RESERVED_SHARED)
    return Gpu((major, minor), environment.multiprocessors or sys.maxsize, shared, environment.l2_bytes or 0)


def _up(value: int, unit: int) -> int:
    return ceil(value / unit) * unit
