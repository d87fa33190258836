"""Every provider that this host can run, so that a new kernel's tests come by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch
from _pytest.mark import ParameterSet

import kernels
from kernels.contract import DTYPES, Inputs, Kernel, Provider
from kernels.point import Point, Shape

ON_GPU = torch.cuda.is_available()
AXES = {"block_size": 128, "num_warps": 4, "num_stages": 2}
"""A launch that every provider can do, small so that rows of a few hundred columns take several steps."""

KERNELS = [pytest.param(kernels.load(name), id=name) for name in kernels.names()]
FLOATS = [pytest.param(dtype, id=name) for name, dtype in DTYPES.items()]


def small(kernel: Kernel, size: int) -> Shape:
    """The shape that the interpreter gets for a size."""
    return kernel.interpreted_shape(Point(kernel.name, kernel.baseline, size, "float32"))


@dataclass(frozen=True)
class Case:
    """A provider of a kernel and the device on which this host can run it."""

    kernel: Kernel
    provider: Provider

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if ON_GPU and "cuda" in self.provider.devices else "cpu")

    @property
    def runs_here(self) -> bool:
        return self.device.type in self.provider.devices or self.provider.is_triton

    @property
    def is_own(self) -> bool:
        """Written in this repository, and not by torch."""
        return self.provider.source != "__init__.py"

    @property
    def compiles_slowly(self) -> bool:
        """Inductor takes about a second for every new shape, dtype and layout."""
        return self.provider.name == "torch_compile"

    def shape(self, size: int) -> Shape:
        return self.kernel.shape(size) if ON_GPU else small(self.kernel, size)

    def inputs(self, size: int, dtype: torch.dtype, seed: int = 0) -> Inputs:
        return self.kernel.inputs(self.shape(size), dtype, self.device, seed)

    def with_parameters(self, x: torch.Tensor) -> Inputs:
        """The tensor and what the kernel takes beside it, a weight for instance, for its shape and dtype."""
        return (x, *self.kernel.inputs(x.shape, x.dtype, x.device, 0)[1:])

    def axes(self, **wanted: int) -> dict[str, int]:
        """The launch of ``AXES`` with what is wanted instead, as far as the provider obeys."""
        return {axis: wanted.get(axis, AXES[axis]) for axis in self.provider.axes}

    def run(self, *inputs: torch.Tensor, **wanted: int) -> torch.Tensor:
        """The provider's output, launched as ``axes`` says."""
        if self.provider.extension:
            extension = pytest.importorskip("pipeline.measure.extension")
            extension.load(self.kernel.name, self.provider.extension)
        return self.provider.call(*inputs, **self.axes(**wanted))

    def check(self, out: torch.Tensor, *inputs: torch.Tensor) -> None:
        """Fails unless the output is the reference within the kernel's tolerance, NaN for NaN.

        Where the answer is beyond the dtype's largest number, that is infinity.
        """
        exact = self.kernel.reference(*inputs)
        rounded = exact.to(inputs[0].dtype)
        expected = torch.where(rounded.isinf(), rounded.double(), exact)
        tolerance = self.kernel.tolerance(inputs[0].dtype)
        torch.testing.assert_close(
            out.double(), expected, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True
        )
        assert out.dtype == inputs[0].dtype
        assert out.device == inputs[0].device


EVERY = [
    Case(kernel, provider)
    for kernel in map(kernels.load, kernels.names())
    for provider in kernel.providers
    if provider.package is None
]
"""Every provider but the peers, whose limits are their own."""
HERE = [case for case in EVERY if case.runs_here]


def params(some: Iterable[Case]) -> list[ParameterSet]:
    """The cases as test parameters with readable ids."""
    return [pytest.param(case, id=f"{case.kernel.name}-{case.provider.name}") for case in some]


def cases(where: Callable[[Case], bool] = lambda case: True, *, slow: bool = False) -> list[ParameterSet]:
    """This host's cases as test parameters, without those that compile slowly unless asked for."""
    return params(case for case in HERE if where(case) and (slow or not case.compiles_slowly))
