"""The textbook sweep that ``bench_sweep`` compares with: compile, verify, ``do_bench``, next.

python -m pipeline.textbook '{"size": [1024], "block_size": [1024], "num_warps": [4]}'
"""

from __future__ import annotations

import json
import sys
from itertools import product

import torch

from kernels.softmax import triton_online


def sweep(axes: dict[str, list[int]]) -> None:
    """Print a line a point of softmax's ``triton_online``: size, block_size, num_warps, milliseconds."""
    from triton.testing import do_bench

    for size, block_size, num_warps in product(axes["size"], axes["block_size"], axes["num_warps"]):
        x = torch.randn(4096, size, device="cuda")
        out = triton_online(x, block_size=block_size, num_warps=num_warps)
        torch.testing.assert_close(out, torch.softmax(x, dim=-1))
        milliseconds = do_bench(
            lambda x=x, b=block_size, w=num_warps: triton_online(x, block_size=b, num_warps=w)
        )
        print(size, block_size, num_warps, milliseconds, flush=True)


if __name__ == "__main__":
    sweep(json.loads(sys.argv[1]))
