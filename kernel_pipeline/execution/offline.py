"""Compile Triton kernels without a GPU: a launch ends once its kernel is compiled, for any architecture.

A provider's own code decides which kernels are compiled. Its tensors need no data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..records.point import Point


class StubDriver:
    """The methods of Triton's driver that a launch calls before it compiles.

    The device's number is its compute capability. Triton caches compiled kernels by device, and so keeps
    kernels of different architectures apart.
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

    ``compile_for`` sets the architecture. An autotuned function takes its first configuration, which is not
    kept in Triton's cache of tuned configurations. Launches through ``torch.library.wrap_triton`` compile,
    too.
    """
    import torch
    from torch._library import triton as operators
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction, MockTensor

    run = JITFunction.run

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        mocks = (MockTensor(arg.dtype) if isinstance(arg, torch.Tensor) else arg for arg in args)
        compiled = run(self, *mocks, grid=grid, warmup=True, **options)
        made(compiled)
        return compiled

    def tune_instead(self: Any, key: Any, configurations: Any, tune: Callable[[], None]) -> bool:
        tune()
        return False

    JITFunction.run = compile_instead
    Autotuner.do_bench = property(lambda tuner: no_time)
    Autotuner.check_disk_cache = tune_instead
    operators.wrap_triton_enabled_default = False
    choose_no_device()


def choose_no_device() -> None:
    """From now on ``with torch.cuda.device(x.device):`` does nothing, because this process has no GPU."""
    import torch

    context: Any = torch.cuda.device
    context.__init__ = lambda self, device: None
    context.__enter__ = lambda self: None
    context.__exit__ = lambda self, *error: False


def no_time(call: Callable[[], Any], quantiles: Any) -> tuple[float, float, float]:
    """Time a configuration of an autotuned function as 0, so that the first one is chosen."""
    del call, quantiles
    return 0.0, 0.0, 0.0


def compile_point(where: str, point: Point) -> None:
    """Compile the Triton kernels that a point of the kernel ``where`` launches.

    The process must only compile. Raises whatever the kernel's files or the compiler raise.
    """
    import torch

    from . import instance

    found = instance.standalone(where, point)
    found.call(*found.inputs(torch.device("meta"), 0))
