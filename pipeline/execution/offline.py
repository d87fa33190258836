"""Compile Triton kernels without a GPU: a launch ends once its kernel is compiled, for any architecture.

A provider's own code decides which kernels are compiled. Its tensors need no data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_pipeline.records.point import Point


class StubDriver:
    """The methods of Triton's driver that a launch calls before it compiles.

    The device's number is its compute capability. Triton caches compiled kernels by device, and so keeps
    those of architectures apart.
    """

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        """Return the only device."""
        return self.capability

    def get_current_stream(self, device: int) -> int:
        """Return a stream on which nothing runs."""
        return 0

    @property
    def utils(self) -> Any:
        """Triton's C helper, built on first use."""
        from triton.backends.nvidia.driver import CudaUtils

        return CudaUtils()

    def get_benchmarker(self) -> Callable[..., tuple[float, float, float]]:
        """Return a stub, so that only the first configuration of an autotuned function is compiled."""
        return lambda call, quantiles: (0.0, 0.0, 0.0)

    def get_current_target(self) -> Any:
        """Return the GPU to compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


def compile_for(capability: int) -> None:
    """From now on let launches in this process compile for a compute capability: 90 is sm_90."""
    from triton.runtime import driver

    driver.set_active(StubDriver(capability))


def only_compile(made: Callable[[Any], None]) -> None:
    """Let launches of Triton kernels in this process only compile, and pass the compiled kernel to ``made``.

    ``compile_for`` sets the architecture.
    """
    import torch
    from triton.runtime.jit import JITFunction, MockTensor

    run = JITFunction.run

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        mocks = (MockTensor(arg.dtype) if isinstance(arg, torch.Tensor) else arg for arg in args)
        made(run(self, *mocks, grid=grid, warmup=True, **options))

    JITFunction.run = compile_instead


def compile_point(where: str, point: Point) -> None:
    """Compile the Triton kernels that a point of the kernel ``where`` launches.

    The process must only compile. Raises whatever the kernel's files or the compiler raise.
    """
    import torch

    from pipeline.execution import instance

    found = instance.standalone(where, point)
    found.call(*found.inputs(torch.device("meta"), 0))
