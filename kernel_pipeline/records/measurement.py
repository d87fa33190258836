"""What happened at a point: a typed, frozen record that can't claim a time it has no right to."""

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
    "ok",
    "verified",
    "not_judged",
    "incorrect",
    "compile_error",
    "runtime_error",
    "out_of_memory",
    "timeout",
]
"""``ok``: right and timed. ``verified``: right, but this machine can't time it (a Triton kernel under the
interpreter). ``not_judged``: this machine's interpreter can't do it, which is no fault of the provider's. All
others: no number."""


Commit = Annotated[str, Meta(pattern=r"^\w{1,64}\Z")]
"""A commit's hash, or ``unknown``."""

Error = Annotated[float, Meta(ge=0), Rounded(3)]
"""How far a number is off, at most."""

Ratio = Annotated[float, Meta(ge=1e-9, le=1e9)]

NINE_OF_TEN = 1.645
"""Standard deviations of a normal distribution within which 90 % of it lie."""

LAUNCH_US = 5.0
"""What the ceilings allow less than these microseconds for is bound by what a launch costs."""

NOTHING_KNOWN: Mapping[str, float] = MappingProxyType({})

FLOOR_DIGITS = 3
"""Of a noise floor."""

ROUNDING = 1e-6
"""Numbers that differ by less of themselves are the same."""


class Timing(Record):
    """Times of one provider at one point, in microseconds a call.

    A sample is the mean over a batch of calls (a batch of one with the ``event`` timer). ``rel_ci`` is the
    half-width of the median's 95 % confidence interval over the median.

    ``canary_us`` are the graph timer's canary before and after the samples, and ``excess_us`` is by how much
    a launch may have been late: 0 in the fast mode of the launch gap. ``overhead_us`` was taken off each
    sample by version 0 of the measuring code.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = (self.min_us, self.p20_us, self.median_us, self.p80_us)
        # A quantile between two samples that are the same may be off by a rounding.
        if any(low > high * (1 + ROUNDING) for low, high in itertools.pairwise(ordered)):
            raise ValueError(f"min, p20, median and p80 are not in order: {ordered}")


class Rate(Record):
    """What a time means: bytes and operations over time (GB/s, TFLOP/s), against the measured ceiling.

    ``bound`` names the ceiling that is nearer by the work's arithmetic intensity, and ``ceiling_fraction`` is
    the rate over that ceiling (None where no ceiling was measured).
    """

    bytes: Count
    flops: Count
    gbps: Annotated[float, Meta(ge=0)]
    tflops: Annotated[float, Meta(ge=0)]
    bound: Literal["memory", "compute"] | None = None
    ceiling_fraction: NotNegative | None = None

    def is_of(self, time_us: float) -> bool:
        """Whether the rates are those of this time."""
        return isclose(self.gbps, self.bytes / time_us / 1e3, rel_tol=ROUNDING) and isclose(
            self.tflops, self.flops / time_us / 1e6, rel_tol=ROUNDING
        )


class State(Record):
    """The device while it was timed. Fields the device can't tell are None; ``valid`` is False for a
    timing not to be trusted, and ``invalid_reason`` says why.

    ``threads`` is how many threads a CPU provider may use. ``noise_floor`` is the relative spread of the
    sweep's control point from its start to its end, or what equal kernels are known to differ by from process
    to process: smaller differences than that mean nothing.
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
        """The same, not to be trusted for a reason; what is not trusted already keeps its own."""
        return self.replace(valid=False, invalid_reason=reason) if self.valid else self


class Launch(Record):
    """One kernel that a call launched, as its provider reports it: the function, how it goes about the
    problem, blocks and threads by dimension, blocks of a cluster, bytes of dynamic shared memory a block, and
    pipeline stages (0 for none)."""

    function: MaskedText
    strategy: MaskedText | None = None
    grid: tuple[Integer, ...]
    block: tuple[Integer, ...]
    cluster: tuple[Integer, ...] = (1, 1, 1)
    shared_bytes: Integer = 0
    stages: Integer = 0


class Parts(Record):
    """What a key is made of: the point; the definitions that the provider runs; the version of the code that
    times and verifies, ``0`` before there were versions, or ``edited`` and the code's digest;
    the environment as far as it changes this provider's code or speed; the timing's settings and the seed.
    All but the version are digests.

    Two rows that differ in one of these can't stand for each other, and this says in which.
    """

    point: Text
    source: Text
    measurement: Text
    environment: Text
    settings: Text

    @property
    def key(self) -> str:
        """What identifies a measurement: with the same key, measuring again could only repeat it."""
        return digest(self.to_dict())

    def differences(self, other: Parts) -> list[str]:
        """The parts in which the two differ."""
        return [name for name in type(self).__struct_fields__ if getattr(self, name) != getattr(other, name)]


class Earlier(Record):
    """What a point took before its provider's source was edited: in another run, so that it is no half of a
    comparison. ``source`` is the digest of the source then."""

    median_us: Microseconds
    source: Text
    run: Text
    commit: Commit
    dirty: bool
    measured_at: When


class Origin(Record):
    """Where and from what a measurement came.

    ``run`` names the invocation that measured it and ``command`` its command line; ``commit`` is that of the
    repository which the kernel belongs to, ``tool`` the pipeline's where that is another. ``device`` tells
    the GPUs of a host apart: ``cuda:1``. ``image`` and ``base_image`` name the container's image and its
    base.
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
    """How the worker got on with a point: the status, and the timing only if there is one to report.

    ``interpreted`` is the problem that an interpreter was given in place of the point's, where that is
    smaller. ``launch`` is what the first call launched, None where the provider does not tell.
    ``audit_ratio`` is how many times its timing a call took by the clock of another process, on inputs that
    were used once (of a time from a hot cache: that of its calls with a cold one); None where no audit was
    made. ``audit_us`` is a looser bound of version 1 of the measuring code, in microseconds. ``any_answer``
    is what would have been found right at this problem though it takes no work: zeros, say.
    ``tolerance_used`` is the share of the tolerance that the output's worst element took. ``unkeyed`` names
    files that were read and that the row's key does not hold.
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
    any_answer: MaskedText | None = None
    tolerance_used: NotNegative | None = None
    unkeyed: MaskedText | None = None

    @property
    def incomparable(self) -> str | None:
        """Why no ratio is made of the time, None where it says something about the kernel."""
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
            raise ValueError("a device state belongs to a timing")
        if self.status in ("ok", "verified") and self.max_abs_err is None:
            raise ValueError(f"status {self.status} needs an output that was verified")
        if (self.status not in ("ok", "verified")) != (self.error is not None):
            raise ValueError(f"status {self.status} and error {self.error!r} contradict each other")


def noise_class(rate: Rate, time_us: float) -> str:
    """By what noise from process to process is known: what bounds a kernel, or ``launch`` where the device's
    ceilings allow less than ``LAUNCH_US``: equal launches differ far more than equal transfers do. Empty
    where no ceiling is known."""
    if rate.bound is None or rate.ceiling_fraction is None:
        return ""
    return "launch" if rate.ceiling_fraction * time_us < LAUNCH_US else rate.bound


class Measurement(Record):
    """One line of a ledger: a point, its outcome, what the time means, and where it came from.

    ``workload`` is the family of problems that it was measured as one of, and ``attempts`` how many runs it
    took: more than one if earlier ones failed. ``earlier`` is the time before the source was edited last, by
    the same version of the measuring code in the same environment.
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
            raise ValueError("the rates are not those of the time")
        if self.parts.point != digest(self.point.to_dict()):
            raise ValueError("the key is that of another point")
        if self.key != self.parts.key:
            raise ValueError("the key is not that of the parts")

    @property
    def slot(self) -> tuple[Point, str]:
        """What a ledger holds one row of: a point by a timing's settings."""
        return self.point, self.parts.settings

    def with_noise_floor(self, spread: float | None, known: Mapping[str, float] = NOTHING_KNOWN) -> Self:
        """The same measurement with its noise floor; unchanged if it has no timing.

        The floor is the spread of the sweep's control point, or, where that is more, what equal kernels
        differ by from process to process: nine of ten of their ratios by less than ``NINE_OF_TEN`` of the
        standard deviations that are ``known`` by ``noise_class``.
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
        """The same measurement with another state of the device."""
        return self.replace(outcome=self.outcome.replace(state=state))

    def before(self, parts: Parts) -> Earlier | None:
        """What a newer row of the same point, of these parts, says of an earlier time."""
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
