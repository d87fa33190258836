"""Ceilings: what this device was measured to do at best, and where a kernel stands below them."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from ..contract import Work
from .base import Record
from .fields import Ceiling, Count, Microseconds, Name, NotNegative, Text
from .measurement import Rate

NEAR = 0.05
"""A canary that is this share above its fast time is not in the fast mode: the slow one is 0.2 above it."""


class Canary(Record):
    """Microseconds that a launch of the canary takes in a graph's replay on one GPU.

    ``fast_us`` is its time after the mode of the launch gap was set, and ``duration_us`` the kernel's own
    duration by CUPTI, None where CUPTI can't be read. ``sm_clock_mhz`` is the clock meanwhile. See
    ``kernel_pipeline.timing.launch_gap``.
    """

    fast_us: Microseconds
    duration_us: Microseconds | None = None
    sm_clock_mhz: Count | None = None

    @property
    def least_us(self) -> float:
        """The time of a launch in the fast mode, in which it is the kernel's duration.

        Where setting the mode has no effect (MIG, MPS, another architecture), the duration, and 0 where that
        is not known: a row's interval reaches down by what its canary is above this.
        """
        if self.duration_us is None:
            return 0.0
        return self.fast_us if self.fast_us <= (1 + NEAR) * self.duration_us else self.duration_us

    @property
    def can_be_fast(self) -> bool:
        """Whether setting the mode gives the fast one on this GPU."""
        return self.least_us == self.fast_us


class Rates(Record):
    """A copy's GB/s (bytes read plus bytes written, of a tensor far larger than any cache), a large matrix
    product's TFLOP/s in each arithmetic, and a GPU's canary, which tells the mode of the launch gap.

    ``sustained_tflops`` are those of the product after seconds of the same work, at the clock that a GPU's
    power allows; a CPU has none.
    """

    copy_gbps: Ceiling
    matmul_tflops: dict[Name, Ceiling]
    sustained_tflops: dict[Name, Ceiling] = field(default_factory=dict)
    canary: Canary | None = None

    def at_best(self, other: Rates) -> Rates:
        """Of each of a CPU's rates the higher: noise only slows."""
        either = self.matmul_tflops | other.matmul_tflops
        return Rates(
            copy_gbps=max(self.copy_gbps, other.copy_gbps),
            matmul_tflops={
                name: max(rate, self.matmul_tflops.get(name, 0.0)) for name, rate in either.items()
            },
        )


DISTURBED = (
    "Others had this machine's cores whenever its ceilings were measured: no time is compared with them, "
    "until python -m pipeline.ceilings has measured them again."
)


class Ceilings(Rates):
    """The rates measured on one device in one environment.

    ``noise`` is what equal kernels' times differ by from process to process, as ``compare`` found it against
    itself: the standard deviation of the logarithms of ratios, by ``noise_class``. ``spread`` is what another
    process, GPU of the model and host add to the 90 % interval of a time, as a share of it, by duration
    (``pipeline.store.spread``). ``is_disturbed`` says that others had a CPU's cores meanwhile. Such rates may
    be a hundred times too low: no time is compared with them, and they are measured again.
    """

    gpu: Name
    environment: Text
    is_disturbed: bool = False
    noise: dict[Name, NotNegative] = field(default_factory=dict)
    spread: dict[Name, NotNegative] = field(default_factory=dict)


def rate(time_us: float, work: Work, ceilings: Ceilings | None) -> Rate:
    """What a time in microseconds means, against the ceilings of the device it was measured on.

    The bound is the ceiling that the operation would reach first at its arithmetic intensity
    (roofline: Williams, Waterman and Patterson, 2009); operations of several arithmetics take their times
    together.
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
