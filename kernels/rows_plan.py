"""Declare the parameters of the CUDA row kernels' launch plan, and check plans. Imports no torch.

``kernels/include/launch_plan.h`` defines a plan, ``kernels/include/plan_rows.h`` makes it. A sweep has no
point for a plan that does not fit, and the operator refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernel_pipeline.contract import ITEM_BYTES, Gpu, one_of

from .rows import Tile

STRATEGIES = (
    "auto",
    "register_resident",
    "shared_memory_resident",
    "persistent",
    "multi_pass",
    "split_multi_pass",
)
"""The places where the CUDA kernel keeps a row between reading and writing it; with auto the plan decides."""

# The same limits are in kernels/include/launch_plan.h and plan_rows.h.

MIN_ELEMENTS = 8
"""The minimum number of elements per thread."""

MAX_REGISTER_ELEMENTS = 32
"""The maximum number of elements per thread in registers; twice as many 16-bit elements if the operation has
a bias."""

REDUCTION_BYTES = 2048
"""The maximum shared memory of a block's reduction, in bytes."""

MAX_PERSISTENT_WARPS = 16
"""The maximum number of warps of a persistent block, so that each thread has 128 registers."""

MAX_PERSISTENT_VECTORS = 8
"""The maximum number of vectors of 16 bytes of a row per thread of the persistent kernel."""

PERSISTENT_BYTES = 4464
"""The maximum shared memory of the persistent kernel besides its stages, in bytes."""

LINE_BYTES = 128
"""In the persistent kernel, each warp's part of a row begins at a multiple of this many bytes."""


@dataclass(frozen=True, kw_only=True)
class RowsPlan(Tile):
    """Requests for the plan. A block takes ``block_size`` elements. With 0 the plan chooses the number."""

    strategy: str = one_of(*STRATEGIES, omit_default=True)
    cluster_size: int = one_of(0, 1, 2, 3, 4, 6, 8, 12, 16, omit_default=True)
    stages: int = one_of(0, 3, 4, 5, 6, omit_default=True)


def plan_fits(problem: Any, plan: RowsPlan, gpu: Gpu | None) -> str | None:
    """Return the reason why the CUDA kernel can't launch by this plan, or None."""
    return next(_reasons(problem, plan, gpu, MAX_REGISTER_ELEMENTS), None)


def plan_with_bias_fits(problem: Any, plan: RowsPlan, gpu: Gpu | None) -> str | None:
    """As ``plan_fits``, for an operation with a bias."""
    twice = ITEM_BYTES[problem.dtype] == 2
    return next(_reasons(problem, plan, gpu, MAX_REGISTER_ELEMENTS * (2 if twice else 1)), None)


def _reasons(problem: Any, plan: RowsPlan, gpu: Gpu | None, elements: int) -> Iterator[str]:
    """Yield the reasons against a plan; a thread keeps at most ``elements`` in registers."""
    largest = _largest_cluster(gpu)
    if plan.stages and plan.strategy != "persistent":
        yield f"{plan.strategy} takes no stages"
    if plan.cluster_size and plan.strategy in {"auto", "multi_pass", "split_multi_pass"}:
        yield f"{plan.strategy} takes no cluster_size"
    if plan.cluster_size > largest:
        yield f"cluster_size {plan.cluster_size} > {largest}, the most that the GPU takes"
    threads = 32 * plan.num_warps
    if plan.strategy == "register_resident":
        yield from _resident(problem, plan, largest, elements * threads)
    elif plan.strategy == "shared_memory_resident":
        room = (_shared_memory(gpu) - REDUCTION_BYTES) // ITEM_BYTES[problem.dtype]
        yield from _resident(problem, plan, largest, room)
    elif plan.strategy == "persistent":
        yield from _persistent(problem, plan, gpu)
    elif plan.strategy == "split_multi_pass":
        if gpu is not None and problem.rows >= gpu.multiprocessors:
            yield f"split_multi_pass is for fewer rows than multiprocessors: {problem.rows}"
        if problem.columns <= max(plan.block_size, 16 * threads):
            yield f"split_multi_pass is for rows of more than a block takes on: {problem.columns} columns"


def _resident(problem: Any, plan: RowsPlan, largest: int, room: int) -> Iterator[str]:
    """Yield the reasons against keeping a row in registers or shared memory, with room for ``room`` elements
    per block."""
    if plan.cluster_size & (plan.cluster_size - 1):
        yield f"{plan.strategy} needs a power of two as cluster_size: {plan.cluster_size}"
    if plan.block_size > room:
        yield f"block_size {plan.block_size} > {room}, what a block of {plan.num_warps} warps has room for"
    block = min(max(plan.block_size, MIN_ELEMENTS * 32 * plan.num_warps), room)
    if plan.cluster_size and problem.columns > plan.cluster_size * block:
        yield f"{plan.cluster_size} blocks hold {plan.cluster_size * block} columns < {problem.columns}"
    if plan.cluster_size * LINE_BYTES > problem.columns * ITEM_BYTES[problem.dtype]:
        yield f"cluster_size {plan.cluster_size} is too large: {problem.columns} columns"
    if problem.columns > largest * room:
        yield f"the largest cluster holds {largest * room} columns < {problem.columns}"


def _persistent(problem: Any, plan: RowsPlan, gpu: Gpu | None) -> Iterator[str]:
    largest = _largest_cluster(gpu)
    if largest == 1:
        yield "persistent needs sm_90 or later"
    if plan.num_warps > MAX_PERSISTENT_WARPS:
        yield f"persistent takes at most {MAX_PERSISTENT_WARPS} warps: {plan.num_warps}"
    item = ITEM_BYTES[problem.dtype]
    if problem.columns * item < LINE_BYTES:
        yield f"persistent needs rows of at least {LINE_BYTES} bytes: {problem.columns * item}"
    room = MAX_PERSISTENT_VECTORS * 16 // item * 32 * plan.num_warps
    if plan.block_size > room:
        yield f"block_size {plan.block_size} > {room}, what {plan.num_warps} warps have registers for"
    needed = -(-problem.columns // plan.block_size)
    cluster = plan.cluster_size or 1 << (needed - 1).bit_length()
    if needed > min(cluster, largest):
        yield f"{problem.columns} columns take {needed} blocks, a cluster has {min(cluster, largest)}"
    lines = -(-problem.columns * item // (LINE_BYTES * cluster))  # lines per block
    if (cluster - 1) * lines * LINE_BYTES >= problem.columns * item:
        yield f"cluster_size {cluster} leaves blocks without work: {problem.columns} columns"
    # Each warp's part of a stage is a whole number of lines, plus one line where rows are unaligned.
    unaligned = problem.columns * item % 16 != 0
    lines_a_warp = -(-lines // plan.num_warps) + unaligned
    stages = max(plan.stages, 3) * plan.num_warps * lines_a_warp * LINE_BYTES + PERSISTENT_BYTES
    if stages > _shared_memory(gpu):
        yield f"the stages take {stages} bytes of shared memory > {_shared_memory(gpu)}"


def _largest_cluster(gpu: Gpu | None) -> int:
    """Return the maximum number of blocks of a cluster: 1 before sm_90, the portable size 8 after sm_10x,
    else 16."""
    if gpu is None:
        return 16
    major = gpu.capability[0]
    return 1 if major < 9 else 16 if major <= 10 else 8


def _shared_memory(gpu: Gpu | None) -> int:
    """Return the maximum shared memory of a block in bytes; without a GPU, the maximum of any GPU."""
    return 227 << 10 if gpu is None else gpu.shared_memory
