"""The record of a measurement: the outcome at a point, its timing, and its origin. Inconsistent records are
rejected."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import isclose
from types import MappingProxyType
from typing import Annotated, Literal, Self

from msgspec import Meta

from .base import Record, Values, digest
from .credentials import MaskedText, masked
from .fields import (
    Changed,
    Count,
    Integer,
    Microseconds,
    Name,
    NotNegative,
    Quantity,
    Rounded,
    Text,
    When,
    rounded,
    visible,
)
from .point import Point

Status = Literal[
    "ok", "verified", "not_judged", "incorrect", "compile_error", "runtime_error", "out_of_memory", "timeout"
]
"""``ok``: the output is right, and the call was timed. ``verified``: the output is right, but this machine
can't time the provider (a Triton kernel under the interpreter). ``not_judged``: this machine's interpreter
can't run the provider, which is not the provider's fault. The others are failures, without a timing."""


Commit = Annotated[str, Meta(pattern=r"^\w{1,64}\Z")]
"""A commit's hash, or ``unknown``."""

Error = Annotated[float, Meta(ge=0), Rounded(3)]
"""A largest error."""

NINE_OF_TEN = 1.645
"""90 % of a normal distribution lie within this many standard deviations."""

LAUNCH_US = 5.0
"""A problem whose time at the ceiling is below this many microseconds is bound by the cost of a launch."""

NOTHING_KNOWN: Mapping[str, float] = MappingProxyType({})

FLOOR_DIGITS = 3
"""The significant digits of a noise floor."""

ROUNDING = 1e-6
"""The relative difference up to which numbers count as equal."""


class Timing(Record):
    """The times of one provider at one point, in microseconds per call.

    A sample is the mean over a batch of calls (one call with the ``event`` timer). ``rel_ci`` is the
    half-width of the median's 95 % confidence interval divided by the median.

    ``canary_us`` are the times of the graph timer's canary before and after the samples. ``excess_us`` is the
    time by which a launch may have been late; 0 in the fast mode of the launch gap. Version 0 of the
    measuring code subtracted ``overhead_us`` from each sample. ``large_ring`` says that the ring of inputs
    was larger than usual, because the audit refused the time over the usual ring.
    """

    timer: Name
    cache: Literal["cold", "hot"]
    median_us: Microseconds
    p20_us: Microseconds
    p80_us: Microseconds
    min_us: Microseconds
    rel_ci: NotNegative
    overhead_us: Quantity | None = None
    n_samples: Count
    samples_us: tuple[Microseconds, ...]
    canary_us: tuple[Microseconds, Microseconds] | None = None
    excess_us: NotNegative = 0.0
    large_ring: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = (self.min_us, self.p20_us, self.median_us, self.p80_us)
        # A quantile interpolated between equal samples may differ from them by a rounding error.
        if any(low > high * (1 + ROUNDING) for low, high in itertools.pairwise(ordered)):
            raise ValueError(f"min, p20, median and p80 are not in order: {ordered}")


class Rate(Record):
    """The rates of a time in GB/s and TFLOP/s, and their share of the measured ceiling.

    ``bound`` is the ceiling that the work reaches first at its arithmetic intensity. ``ceiling_fraction`` is
    the rate divided by that ceiling. Both are None if no ceiling was measured.
    """

    bytes: Count
    flops: Count
    gbps: Annotated[float, Meta(ge=0)]
    tflops: Annotated[float, Meta(ge=0)]
    bound: Literal["memory", "compute"] | None = None
    ceiling_fraction: NotNegative | None = None

    def is_of(self, time_us: float) -> bool:
        """Whether the rates agree with a time."""
        return isclose(self.gbps, self.bytes / time_us / 1e3, rel_tol=ROUNDING) and isclose(
            self.tflops, self.flops / time_us / 1e6, rel_tol=ROUNDING
        )


class State(Record):
    """The state of the device during a timing. Fields that the device does not report are None.

    ``valid`` is False for a timing that can't be trusted; ``invalid_reason`` gives the reason. ``threads`` is
    the number of threads that a CPU provider may use. ``noise_floor`` is the larger of two relative
    differences: the spread of the sweep's control point between start and end, and the known difference of
    equal kernels from process to process. Smaller differences mean nothing.
    """

    sm_clock_mhz: Count | None = None
    mem_clock_mhz: Count | None = None
    temperature_c: Integer | None = None
    power_w: NotNegative | None = None
    throttle: Text | None = None
    threads: Count | None = None
    noise_floor: NotNegative | None = None
    run_delay: NotNegative | None = None
    involuntary_switches: Count | None = None
    neighbours: Count | None = None
    valid: bool = True
    invalid_reason: Text | None = None

    def distrusted(self, reason: str) -> Self:
        """Return the state marked as invalid for a reason. An invalid state keeps its first reason."""
        return self.replace(valid=False, invalid_reason=reason) if self.valid else self


class Launch(Record):
    """One kernel launch of a call, as its provider reports it.

    ``function`` is the kernel function, and ``strategy`` the way it divides the problem. ``grid``, ``block``
    and ``cluster`` are in blocks, threads and blocks per dimension. ``shared_bytes`` is the dynamic shared
    memory per block, and ``stages`` the number of pipeline stages (0 for none).
    """

    function: MaskedText
    strategy: MaskedText | None = None
    grid: tuple[Integer, ...]
    block: tuple[Integer, ...]
    cluster: tuple[Integer, ...] = (1, 1, 1)
    shared_bytes: Integer = 0
    stages: Integer = 0


class Parts(Record):
    """The parts of a measurement's key.

    ``point``, ``source`` (the definitions that the provider runs), ``environment`` (as far as it changes this
    provider's code or speed) and ``settings`` (of the timing, with the seed) are digests. ``measurement`` is
    the version of the code that times and verifies: ``0`` before there were versions, or ``edited`` with the
    code's digest. Two rows that differ in a part can't replace each other.
    """

    point: Text
    source: Text
    measurement: Text
    environment: Text
    settings: Text

    @property
    def key(self) -> str:
        """The digest of all parts: with an equal key, measuring again could only repeat the measurement."""
        return digest(self.to_dict())

    def differences(self, other: Parts) -> list[str]:
        """Return the names of the parts that differ."""
        return [name for name in type(self).__struct_fields__ if getattr(self, name) != getattr(other, name)]


class Earlier(Record):
    """The time of a point before its provider's source was edited. It is from another run, so it can't be
    compared side by side. ``source`` is the digest of the source at that time."""

    median_us: Microseconds
    source: Text
    run: Text
    commit: Commit
    dirty: bool
    measured_at: When


class Origin(Record):
    """The origin of a measurement.

    ``run`` names the invocation that measured, and ``command`` is its command line. ``commit`` is the commit
    of the kernel's repository; ``tool`` is the pipeline's commit if the pipeline is in another repository.
    ``device`` is the GPU of the host, such as ``cuda:1``. ``image`` and ``base_image`` name the container's
    image and its base.
    """

    gpu: Name
    device: Text
    run: Text
    command: Text
    commit: Commit
    dirty: bool
    tool: Commit | None = None
    measured_at: When
    image: Text | None = None
    base_image: Text | None = None


def _one_line(error: str) -> str:
    return visible(" ".join(masked(error).split()))[:500]


class Outcome(Record):
    """The outcome of a point: the status, and for ``ok`` the timing.

    interpreted:
        The smaller problem that the interpreter ran instead of the point's, if it differs.
    launch:
        The kernels that the first call launched; None if the provider does not report them.
    audit_ratio:
        The audit's time divided by the timing; None without an audit. The audit times a call by another
        process's clock, on inputs that are used once. A hot timing is audited by timing the same calls with a
        cold cache.
    audit_us:
        A looser bound in microseconds, by version 1 of the measuring code.
    any_answer:
        A trivial answer, such as zeros, that would pass the verification at this problem.
    prepare_ms:
        The shortest time in milliseconds to prepare a set's weights, before calls that are timed; None for a
        provider that prepares none.
    peak_mib:
        The memory in MiB that a call held at most beyond its inputs and outputs; None for a kernel that does
        not declare it.
    host_us:
        The median microseconds until a call on a GPU returns to the host, by the worker's own clock; None on
        a CPU and for a kernel that does not declare it.
    tolerance_used:
        The largest error of an element as a share of its tolerance.
    unkeyed:
        Files that were read but are not part of the row's key.
    """

    status: Status
    error: Annotated[str, Changed(_one_line)] | None = None
    interpreted: Values | None = None
    max_abs_err: Error | None = None
    max_rel_err: Error | None = None
    launch: tuple[Launch, ...] | None = None
    timing: Timing | None = None
    state: State | None = None
    audit_ratio: NotNegative | None = None
    audit_us: Microseconds | None = None
    prepare_ms: Annotated[float, Meta(ge=0), Rounded(3)] | None = None
    peak_mib: Annotated[float, Meta(ge=0), Rounded(4)] | None = None
    host_us: Microseconds | None = None
    any_answer: MaskedText | None = None
    tolerance_used: NotNegative | None = None
    unkeyed: MaskedText | None = None

    @property
    def incomparable(self) -> str | None:
        """The reason why the time must not be compared, or None."""
        if self.any_answer is not None:
            return f"any answer passes: {self.any_answer} would be found right, too"
        if self.unkeyed is not None:
            return f"it depends on files that are not in the key: {self.unkeyed}"
        return None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.status == "ok") != (self.timing is not None):
            raise ValueError(f"a measurement has a timing exactly if its status is ok, not {self.status}")
        if self.timing is None and self.state is not None:
            raise ValueError("a device state needs a timing")
        if self.status in ("ok", "verified") and self.max_abs_err is None:
            raise ValueError(f"status {self.status} needs an output that was verified")
        if (self.status not in ("ok", "verified")) != (self.error is not None):
            raise ValueError(f"status {self.status} and error {self.error!r} contradict each other")


class Accuracy(Record):
    """How accurate a provider's outputs are: the median and the largest distance of their elements from the
    float64 reference, in units in the last place, and whether two calls on the same inputs gave the same
    bits."""

    ulp_median: NotNegative
    ulp_worst: NotNegative
    repeats: bool


class Sustained(Record):
    """A provider's time after seconds of the same work, at the clock at which the device settles. ``joules``
    is the device's energy per call, None if the device does not report it."""

    median_us: Microseconds
    samples_us: tuple[Microseconds, ...]
    sm_clock_mhz: Count | None = None
    power_w: NotNegative | None = None
    throttle: Text | None = None
    joules: NotNegative | None = None


def noise_class(rate: Rate, time_us: float) -> str:
    """Return the class of times with similar noise between processes: the rate's bound, or ``launch`` if
    the time at the ceiling is below ``LAUNCH_US``. Equal launches differ far more than equal transfers.
    Return an empty string if no ceiling is known."""
    if rate.bound is None or rate.ceiling_fraction is None:
        return ""
    return "launch" if rate.ceiling_fraction * time_us < LAUNCH_US else rate.bound


class Measurement(Record):
    """One row of a ledger: a point, its outcome, the rates of its time, and its origin.

    ``workload`` is the family of problems that the point was measured for. ``attempts`` is the number of runs
    that it took, more than one if earlier runs failed. ``earlier`` is the time before the source was last
    edited, by the same version of the measuring code in the same environment.
    """

    key: Text
    point: Point
    workload: Name
    outcome: Outcome
    rate: Rate | None = None
    parts: Parts
    origin: Origin
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 1
    earlier: Earlier | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rate is None) != (self.outcome.timing is None):
            raise ValueError("a rate needs a timing, and a timing has a rate")
        if self.rate and self.outcome.timing and not self.rate.is_of(self.outcome.timing.median_us):
            raise ValueError("the rates do not match the time")
        if self.parts.point != digest(self.point.to_dict()):
            raise ValueError("the key belongs to another point")
        if self.key != self.parts.key:
            raise ValueError("the key does not match the parts")

    @property
    def slot(self) -> tuple[Point, str]:
        """The point and the digest of the timing's settings; a ledger holds one row for each."""
        return self.point, self.parts.settings

    def with_noise_floor(self, spread: float | None, known: Mapping[str, float] = NOTHING_KNOWN) -> Self:
        """Return the measurement with its noise floor; unchanged if it has no device state.

        The floor is the larger of two values: the ``spread`` of the sweep's control point, and
        ``NINE_OF_TEN`` times the standard deviation of equal kernels' ratios from process to process, which
        is ``known`` by ``noise_class``. Nine of ten ratios of equal kernels differ by less than the latter.
        """
        if self.outcome.state is None:
            return self
        of_process = None
        if self.rate is not None and self.outcome.timing is not None:
            of_process = known.get(noise_class(self.rate, self.outcome.timing.median_us))
        floors = [spread, None if of_process is None else NINE_OF_TEN * of_process]
        floor = max((one for one in floors if one is not None), default=None)
        floor = None if floor is None else rounded(floor, FLOOR_DIGITS)
        return self.with_state(self.outcome.state.replace(noise_floor=floor))

    def with_state(self, state: State) -> Self:
        """Return the measurement with another device state."""
        return self.replace(outcome=self.outcome.replace(state=state))

    def before(self, parts: Parts) -> Earlier | None:
        """Return the ``earlier`` of a newer row at the same point with the given parts."""
        changed = set(self.parts.differences(parts))
        if changed - {"source"}:
            return None
        timing = self.outcome.timing
        if not changed or timing is None:
            return self.earlier
        return Earlier(
            median_us=timing.median_us,
            source=self.parts.source,
            run=self.origin.run,
            commit=self.origin.commit,
            dirty=self.origin.dirty,
            measured_at=self.origin.measured_at,
        )
