"""Triton without a GPU: a launch that ends once its kernel is compiled, for whatever architecture is asked.

A provider's own code decides what is compiled; its tensors may be ones without data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_pipeline.records.point import Point


class StubDriver:
    """What a launch asks of Triton's driver before it compiles. The device bears the number of its compute
    capability: Triton keeps what it compiled by device, and must not take one architecture's code for
    another's."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        """The only one there is."""
        return self.capability

    def get_current_stream(self, device: int) -> int:
        """Nothing runs on it."""
        return 0

    @property
    def utils(self) -> Any:
        """Triton's C helper, built on first use."""
        from triton.backends.nvidia.driver import CudaUtils

        return CudaUtils()

    def get_benchmarker(self) -> Callable[..., tuple[float, float, float]]:
        """Nothing is timed: of an autotuned function the first configuration is compiled."""
        return lambda call, quantiles: (0.0, 0.0, 0.0)

    def get_current_target(self) -> Any:
        """The GPU to compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


def compile_for(capability: int) -> None:
    """Let launches in this process compile for a compute capability, 90 for sm_90, from now on."""
    from triton.runtime import driver

    driver.set_active(StubDriver(capability))


def only_compile(made: Callable[[Any], None]) -> None:
    """Make this process one in which a launch of a Triton kernel only compiles it and hands the result over.

    ``compile_for`` says what for.
    """
    import torch
    from triton.runtime.jit import JITFunction, MockTensor

    run = JITFunction.run

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        mocks = (MockTensor(arg.dtype) if isinstance(arg, torch.Tensor) else arg for arg in args)
        made(run(self, *mocks, grid=grid, warmup=True, **options))

    JITFunction.run = compile_instead


def compile_point(where: str, point: Point) -> None:
    """Compile what a point of the kernel that ``where`` names launches, in a process that only compiles.
    Raises whatever the kernel's files or the compiler raise."""
    import torch

    from pipeline.execution import instance

    found = instance.standalone(where, point)
    found.call(*found.inputs(torch.device("meta"), 0))
