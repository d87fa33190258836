"""Ceilings: the highest rates that a device was measured to reach, and a kernel's rates relative to them."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from ..contract import Work
from .base import Record
from .fields import Ceiling, Count, Microseconds, Name, NotNegative, Text
from .measurement import Rate

NEAR = 0.05
"""A canary this share above its fast time is not in the fast mode; the slow mode is about 0.2 above it."""


class Canary(Record):
    """The times of a launch of the canary in a graph replay on one GPU, in microseconds.

    ``fast_us`` is the time after the mode of the launch gap was set. ``duration_us`` is the kernel's duration
    by CUPTI; None if CUPTI is not available. ``sm_clock_mhz`` is the clock during the measurement. See
    ``kernel_pipeline.timing.launch_gap``.
    """

    fast_us: Microseconds
    duration_us: Microseconds | None = None
    sm_clock_mhz: Count | None = None

    @property
    def least_us(self) -> float:
        """The time of a launch in the fast mode.

        It is ``fast_us`` if setting the mode works, which is the case if it is near the duration. If setting
        the mode has no effect (MIG, MPS, another architecture), it is the duration. It is 0 if the duration
        is not known. A row's interval is extended downwards by the canary's excess over this time.
        """
        if self.duration_us is None:
            return 0.0
        return self.fast_us if self.fast_us <= (1 + NEAR) * self.duration_us else self.duration_us

    @property
    def can_be_fast(self) -> bool:
        """Whether setting the mode gives the fast mode on this GPU."""
        return self.least_us == self.fast_us


class Rates(Record):
    """The rates of a device.

    ``copy_gbps`` is a copy's rate (bytes read plus bytes written, for a tensor far larger than any cache).
    ``matmul_tflops`` are a large matrix product's rates by arithmetic. ``sustained_tflops`` are the same
    after seconds of work, at the clock that a GPU's power limit allows; a CPU has none. ``canary`` has a
    GPU's times of the canary, which identify the mode of the launch gap.
    """

    copy_gbps: Ceiling
    matmul_tflops: dict[Name, Ceiling]
    sustained_tflops: dict[Name, Ceiling] = field(default_factory=dict)
    canary: Canary | None = None

    def at_best(self, other: Rates) -> Rates:
        """Return the higher of each of a CPU's rates in two measurements, because noise only lowers rates."""
        either = self.matmul_tflops | other.matmul_tflops
        return Rates(
            copy_gbps=max(self.copy_gbps, other.copy_gbps),
            matmul_tflops={
                name: max(rate, self.matmul_tflops.get(name, 0.0)) for name, rate in either.items()
            },
        )


DISTURBED = (
    "Others had this machine's cores whenever its ceilings were measured: no time is compared with them, "
    "until the command `benchmarks ceilings` has measured them again."
)


class Ceilings(Rates):
    """The rates measured on one device in one environment.

    ``noise`` is the noise of equal kernels from process to process: the standard deviation of the logarithms
    of their ratios, by ``noise_class``, from comparing kernels with themselves. ``spread`` is the share of a
    time that another process, GPU of the same model and host add to its 90 % interval, by duration
    (``pipeline.store.spread``). ``is_disturbed`` says that other processes used a CPU's cores during the
    measurement. Such rates may be a hundred times too low: no time is compared with them, and they are
    measured again.
    """

    gpu: Name
    environment: Text
    is_disturbed: bool = False
    noise: dict[Name, NotNegative] = field(default_factory=dict)
    spread: dict[Name, NotNegative] = field(default_factory=dict)


def rate(time_us: float, work: Work, ceilings: Ceilings | None) -> Rate:
    """Return the rates of a time in microseconds, and their share of the device's ceilings.

    ``bound`` is the ceiling that the operation would reach first at its arithmetic intensity (roofline model:
    Williams, Waterman and Patterson, 2009). The least times of operations of several arithmetics are added.
    """
    gbps = work.bytes / time_us / 1e3
    tflops = work.flops / time_us / 1e6
    bound: Literal["memory", "compute"] | None = None
    fraction = None
    if ceilings is not None and ceilings.is_disturbed:
        ceilings = None
    if ceilings is not None and work.operations.keys() <= ceilings.matmul_tflops.keys():
        memory = gbps / ceilings.copy_gbps
        compute = sum(n / ceilings.matmul_tflops[name] for name, n in work.operations.items()) / time_us / 1e6
        bound, fraction = ("memory", memory) if memory >= compute else ("compute", compute)
    return Rate(
        bytes=work.bytes, flops=work.flops, gbps=gbps, tflops=tflops, bound=bound, ceiling_fraction=fraction
    )
