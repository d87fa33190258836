"""Compile every Triton provider for several GPUs on a host that has none, and say what was compiled.

Run in a process of its own, without the interpreter: it puts a stub in place of Triton's driver and lets
each launch end in compilation. The providers are handed tensors without data. Prints a JSON line a binary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction, MockTensor

import kernels
from kernels.contract import DTYPES, Kernel, Provider
from kernels.point import Point

ARCHITECTURES = (80, 90, 100)
# A row of one element, one that is no multiple of anything, and one that loads can be vectorized over.
SHAPES = ((64, 1), (64, 37), (64, 4096))


class StubDriver:
    """What a launch asks of the driver before it compiles. The device is the compute capability."""

    def __init__(self) -> None:
        self.device = ARCHITECTURES[0]

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.device, 32)


def launches(provider: Provider) -> Iterator[dict[str, int]]:
    """Two launches that differ in every axis, as the provider takes them."""
    for block_size, num_warps, num_stages in ((128, 2, 2), (4096, 8, 3)):
        axes = {"block_size": block_size, "num_warps": num_warps, "num_stages": num_stages}
        yield {axis: axes[axis] for axis in provider.axes}


def compile_all(kernel: Kernel, provider: Provider, binaries: list[Any], stub: StubDriver) -> None:
    """Every architecture, dtype and launch; every shape for one architecture, since they don't interact."""
    for stub.device in ARCHITECTURES:
        for name, dtype in DTYPES.items():
            for shape in SHAPES if stub.device == 90 else SHAPES[-1:]:
                for axes in launches(provider):
                    point = Point(kernel.name, provider.name, shape[1], name, **axes)
                    if provider.unsupported(point, shape):
                        continue
                    binaries.clear()
                    provider.call(*kernel.inputs(shape, dtype, torch.device("meta"), 0), **axes)
                    for binary in binaries:
                        row = {
                            "kernel": kernel.name,
                            "provider": provider.name,
                            "architecture": stub.device,
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
    stub = StubDriver()
    driver.set_active(stub)
    binaries: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        args = tuple(MockTensor(arg.dtype) if isinstance(arg, torch.Tensor) else arg for arg in args)
        binaries.append(run(self, *args, grid=grid, warmup=True, **options))

    JITFunction.run = compile_only
    for kernel in map(kernels.load, kernels.names()):
        for provider in kernel.providers:
            if provider.is_triton:
                compile_all(kernel, provider, binaries, stub)


if __name__ == "__main__":
    main()
