"""Launch Numba kernels on torch's tensors and torch's stream, or in Numba's simulator on a CPU.

By default Numba launches on its own stream. Torch would not wait for such a launch, and a CUDA graph that
torch captures would not contain it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from numba.cuda.core import config

from .threads import NUMBA_DTYPES

config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small problems are intended here

# numba-cuda 0.30 needs this alias of vstack before it compiles anything; NumPy 2.5 no longer has it.
vars(numpy).setdefault("row_stack", numpy.vstack)

SIMULATED = bool(config.ENABLE_CUDASIM)
"""Whether Numba's kernels run in its simulator: ``NUMBA_ENABLE_CUDASIM=1`` was set at Numba's import."""

SIMULATED_BLOCKS = 4
"""The maximum number of blocks to launch in the simulator, where each thread is a Python thread."""

SWITCH_S = 1e-4
"""Python's thread switch interval in the simulator, in seconds."""

Shape = int | tuple[int, int]


def check_numba(x: torch.Tensor) -> None:
    """Raise ValueError for a tensor whose dtype or device Numba does not support."""
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in NUMBA_DTYPES:
        raise ValueError(f"Numba needs {' or '.join(NUMBA_DTYPES)}, got {dtype}")
    if x.device.type == "cpu" and not SIMULATED:
        raise ValueError("on a CPU Numba needs its simulator: set NUMBA_ENABLE_CUDASIM=1")


def blocks_for(elements: int, threads: int) -> int:
    """Return the number of blocks for one element per thread; in the simulator it is limited, because the
    kernel's threads loop over further elements. Raises ValueError for more blocks than CUDA can launch."""
    blocks = -(-elements // threads)
    if blocks > 2**31 - 1:
        raise ValueError(f"a launch has at most 2**31 - 1 blocks, and this launch needs {blocks}")
    return min(blocks, SIMULATED_BLOCKS) if SIMULATED else blocks


def launch(kernel: Any, blocks: Shape, threads: Shape, *arguments: Any, shared_bytes: int = 0) -> None:
    """Launch a kernel on torch's current stream. Its arguments are contiguous tensors and numbers."""
    device = next(one.device for one in arguments if isinstance(one, torch.Tensor))
    if device.type == "cuda":
        from numba import cuda

        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        # Pass Numba's own arrays. For a tensor Numba would make torch synchronize a stream, and torch refuses
        # the number of the default stream.
        arrays = (
            cuda.as_cuda_array(one, sync=False) if isinstance(one, torch.Tensor) else one for one in arguments
        )
        kernel[blocks, threads, stream, shared_bytes](*arrays)
    elif device.type == "meta":  # the kernel is compiled, not run
        kernel[blocks, threads, 0, shared_bytes](*arguments)
    else:
        _simulate(kernel[blocks, threads, 0, shared_bytes], arguments)


def _simulate(launched: Any, arguments: Sequence[Any]) -> None:
    """Run a kernel in the simulator. Its threads wait for each other, which takes three times as long with
    Python's default switch interval of 5 ms."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        launched(*(one.numpy() if isinstance(one, torch.Tensor) else one for one in arguments))
    finally:
        sys.setswitchinterval(interval)
