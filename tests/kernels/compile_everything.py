"""Compile every Triton provider for several GPUs on a host that has none, and say what was compiled.

Run in a process of its own, without the interpreter. The providers are handed tensors without data. Prints a
JSON line a binary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import torch

import kernels
from kernels.contract import DTYPES, Kernel, Provider
from kernels.point import Point
from pipeline.measure.offline import compile_for, only_compile

ARCHITECTURES = (80, 90, 100)
# A row of one element, one that is no multiple of anything, and one that loads can be vectorized over.
SHAPES = ((64, 1), (64, 37), (64, 4096))


LAUNCHES = ((128, 2, 2), (4096, 8, 3))
"""BLOCK_SIZE, num_warps and num_stages: two launches that differ in every axis."""


def launches(provider: Provider, number: int) -> Iterator[dict[str, int]]:
    """The last so many launches, as the provider takes them."""
    for block_size, num_warps, num_stages in LAUNCHES[-number:]:
        axes = {"block_size": block_size, "num_warps": num_warps, "num_stages": num_stages}
        yield {axis: axes[axis] for axis in provider.axes}


def compile_all(kernel: Kernel, provider: Provider, binaries: list[Any]) -> None:
    """Every architecture and dtype; every shape and launch for one of each: they don't interact."""
    for architecture in ARCHITECTURES:
        compile_for(architecture)
        for name, dtype in DTYPES.items():
            every = (architecture, name) == (90, "bfloat16")
            for shape in SHAPES if every else SHAPES[-1:]:
                for axes in launches(provider, 2 if every and shape == SHAPES[-1] else 1):
                    point = Point(kernel.name, provider.name, shape[1], name, **axes)
                    if provider.unsupported(point, shape):
                        continue
                    binaries.clear()
                    provider.call(*kernel.inputs(shape, dtype, torch.device("meta"), 0), **axes)
                    for binary in binaries:
                        row = {
                            "kernel": kernel.name,
                            "provider": provider.name,
                            "architecture": architecture,
                            "dtype": name,
                            "columns": shape[1],
                            "axes": axes,
                            "num_warps": binary.metadata.num_warps,
                            "target": binary.metadata.target.arch,
                            "constants": sorted(
                                value for value in binary.src.constants.values() if isinstance(value, int)
                            ),
                            "vector_loads": len(re.findall(r"ld\.global\S*\.v[248]\.", binary.asm["ptx"])),
                            "cubin_bytes": len(binary.asm["cubin"]),
                        }
                        print(json.dumps(row), flush=True)


def main() -> None:
    """Compile all there is."""
    binaries: list[Any] = []
    only_compile(binaries.append)
    for kernel in map(kernels.load, kernels.names()):
        for provider in kernel.providers:
            if provider.is_triton:
                compile_all(kernel, provider, binaries)


if __name__ == "__main__":
    main()
