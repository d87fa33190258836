"""Compute the number of waves of a grid.

A wave is as many blocks as all SMs hold at once. The number of blocks on an SM is limited by its 65536
registers, its 64 warps, its 32 blocks and its 228 KiB of shared memory. Registers are given to a warp in
units of 256, and to a quarter of the SM, so an SM has registers for 4 x (16384 // registers of a warp) warps.
A block takes 1 KiB of shared memory more than it asks for, in units of 128 bytes. Both GPUs have 132 SMs. The
cases are kernels of this repository, with ncu's counts.
"""

from __future__ import annotations

from docs.exercises._rows import rows

SMS = 132
SHARED = 228 * 1024


def yours(blocks: int, threads: int, registers: int, shared: int) -> float:
    """Return the waves of a grid, by its blocks, threads a block, registers a thread and bytes a block."""
    warps = -(-threads // 32)
    of_a_warp = -(-registers * 32 // 256) * 256
    of_a_block = -(-(shared + 1024) // 128) * 128
    # YOURS: how many blocks does an SM hold? Return the waves.
    by_registers = 4 * (16384 // of_a_warp) // warps
    by_warps = 64 // warps
    by_shared = SHARED // of_a_block
    return blocks / (SMS * min(by_registers, by_warps, by_shared, 32))
    # END


def _case(row: dict) -> tuple[int, int, int, int]:
    shared = row["shared_static_bytes"] + row["shared_dynamic_bytes"]
    return int(row["grid_size"]), int(row["block_size_threads"]), int(row["registers"]), int(shared)


def expected(*case: int) -> float:
    """Return the waves by ncu."""
    return next(float(row["waves_per_sm"]) for row in rows("counters") if _case(row) == case)


def cases():
    """All kernels with at least one wave: ncu rounds to two digits."""
    yield from dict.fromkeys(_case(row) for row in rows("counters") if row["waves_per_sm"] >= 1)


TOLERANCE = 0.01

TOPIC, STEP = "Reading profiles", 2

MISTAKE = """
by_warps = 64 // warps
by_shared = SHARED // of_a_block
return blocks / (SMS * min(by_warps, by_shared, 32))
"""

HINTS = (
    "Each limit gives a number of blocks; the smallest counts.",
    "4 * (16384 // of_a_warp) warps fit by registers: divide by the warps of a block, and round down.",
    "blocks / (SMS * min(by_registers, by_warps, by_shared, 32))",
)
