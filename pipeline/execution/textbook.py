"""The textbook sweep that ``bench_sweep`` compares with: compile, verify, ``do_bench``, next.

python -m pipeline.execution.textbook '[[1024, 1024, 4]]'
"""

from __future__ import annotations

import json
import sys
from time import perf_counter

import torch

from kernels.softmax import triton_online


def sweep(points: list[tuple[int, int, int]]) -> None:
    """Measure the points, each a size, a block_size and a number of warps. Print each with its milliseconds,
    and at the end the seconds that all took."""
    from triton.testing import do_bench

    begin = perf_counter()
    for size, block_size, num_warps in points:
        x = torch.randn(4096, size, device="cuda")
        out = triton_online(x, block_size=block_size, num_warps=num_warps)
        torch.testing.assert_close(out, torch.softmax(x, dim=-1))
        milliseconds = do_bench(
            lambda x=x, b=block_size, w=num_warps: triton_online(x, block_size=b, num_warps=w)
        )
        print(size, block_size, num_warps, milliseconds, flush=True)
    print(f"{len(points)} points measured in {perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    sweep(json.loads(sys.argv[1]))
