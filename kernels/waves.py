"""Count the waves of a launch, for the growth of times between problems."""

from __future__ import annotations

from kernel_pipeline.contract import Gpu

START = 4
"""Steps that a launch of one wave takes beside its blocks' steps."""


def up_to(extent: int, block: int) -> int:
    """Return the number of blocks that cover an extent."""
    return -(-extent // block)


def waves(blocks: int, gpu: Gpu) -> int:
    """Return the number of blocks that the busiest multiprocessor computes. Blocks that it holds at the same
    time share it, and take as long as one after the other."""
    return up_to(blocks, gpu.multiprocessors)
