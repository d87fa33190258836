"""What happened at a point: a typed, frozen record that can't claim a time it has no right to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from kernels.point import Point

Status = Literal[
    "ok", "verified", "incorrect", "unsupported", "compile_error", "runtime_error", "out_of_memory", "timeout"
]
"""``ok``: right and timed. ``verified``: right, but this machine can't time it (a Triton kernel under the
interpreter). All others: no number."""


def digest(value: Any) -> str:
    """Sixteen hex digits that identify a JSON-able value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Record(BaseModel):
    """Base of all records: frozen, and nothing unknown gets in."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Timing(Record):
    """Times of one provider at one point, in microseconds a call.

    A sample is the mean over a batch of calls (a batch of one with the ``event`` timer), less
    ``overhead_us``. ``rel_ci`` is the half-width of the median's 95 % confidence interval over the median.
    """

    timer: str
    cache: Literal["cold", "hot"]
    median_us: float
    p20_us: float
    p80_us: float
    min_us: float
    rel_ci: float
    overhead_us: float
    n_samples: int
    samples_us: tuple[float, ...]


class Rate(Record):
    """What a time means: bytes and operations over time (GB/s, TFLOP/s), against the measured ceiling.

    ``bound`` names the ceiling that is nearer by the kernel's arithmetic intensity, and
    ``ceiling_fraction`` is the rate over that ceiling (None where no ceiling was measured).
    """

    bytes: int
    flops: int
    gbps: float
    tflops: float
    bound: Literal["memory", "compute"] | None
    ceiling_fraction: float | None


class State(Record):
    """The device while it was timed. Fields the device can't tell are None; ``valid`` is False for a
    timing not to be trusted, and ``invalid_reason`` says why.

    ``threads`` is how many threads a CPU provider may use, and ``noise_floor`` the relative spread of the
    sweep's control point from its start to its end: smaller differences than that mean nothing.
    """

    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle: str | None = None
    threads: int | None = None
    noise_floor: float | None = None
    valid: bool = True
    invalid_reason: str | None = None


class Origin(Record):
    """Where and from what a measurement came. ``device`` tells the GPUs of a host apart: ``cuda:1``;
    ``image`` and ``base_image`` name the container's image and its base, where there was one."""

    gpu: str
    device: str
    environment: str
    source: str
    commit: str
    dirty: bool
    measured_at: datetime
    image: str | None = None
    base_image: str | None = None

    @field_validator("measured_at")
    @classmethod
    def _seconds(cls, value: datetime) -> datetime:
        return value.replace(microsecond=0)


class Outcome(Record):
    """How the worker got on with a point: the status, and the timing only if there is one to report."""

    status: Status
    error: str | None = None
    shape: tuple[int, ...]
    max_abs_err: float | None = None
    max_rel_err: float | None = None
    timing: Timing | None = None
    state: State | None = None

    @model_validator(mode="after")
    def _no_number_without_right(self) -> Self:
        if (self.status == "ok") != (self.timing is not None):
            raise ValueError(f"a measurement has a timing exactly if its status is ok, not {self.status}")
        if self.timing is None and self.state is not None:
            raise ValueError("a device state belongs to a timing")
        if self.status in ("ok", "verified") and self.max_abs_err is None:
            raise ValueError(f"status {self.status} needs an output that was verified")
        if (self.status not in ("ok", "verified")) != (self.error is not None):
            raise ValueError(f"status {self.status} and error {self.error!r} contradict each other")
        return self

    @field_validator("error")
    @classmethod
    def _one_line(cls, value: str | None) -> str | None:
        return value and " ".join(value.split())[:500]


POINT_FIELDS = tuple(f.name for f in fields(Point))
GROUPS: dict[str, type[Record]] = {"timing": Timing, "rate": Rate, "state": State, "origin": Origin}


class Measurement(Record):
    """One line of a ledger: a point, its outcome, what the time means, and where it came from."""

    key: str
    point: Point
    outcome: Outcome
    rate: Rate | None
    origin: Origin

    @model_validator(mode="after")
    def _rate_with_timing(self) -> Self:
        if (self.rate is None) != (self.outcome.timing is None):
            raise ValueError("a rate needs a timing, and a timing has a rate")
        return self

    def with_noise_floor(self, noise_floor: float | None) -> Self:
        """The same measurement with the noise floor of its sweep; unchanged if it has no timing."""
        if self.outcome.state is None:
            return self
        state = self.outcome.state.model_copy(update={"noise_floor": noise_floor})
        return self.model_copy(update={"outcome": self.outcome.model_copy(update={"state": state})})

    def row(self) -> dict[str, Any]:
        """The flat form that a ledger holds; every field is there, null where it has no meaning, but ``rows``
        only where the point names them: lines from before points had rows stay as they are."""
        row: dict[str, Any] = {"key": self.key, **asdict(self.point)}
        if self.point.rows is None:
            del row["rows"]
        row |= self.outcome.model_dump(mode="json", exclude={"timing", "state"})
        parts = {"timing": self.outcome.timing, "rate": self.rate, "state": self.outcome.state}
        for group, part in (*parts.items(), ("origin", self.origin)):
            empty: dict[str, Any] = dict.fromkeys(GROUPS[group].model_fields)
            row |= empty if part is None else part.model_dump(mode="json")
        return row

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Rebuild a record from its flat form; raises pydantic.ValidationError for anything else."""
        rest = dict(row)
        groups: dict[str, dict[str, Any] | None] = {}
        for group, model in GROUPS.items():
            part = {name: rest.pop(name, None) for name in model.model_fields}
            groups[group] = None if all(value is None for value in part.values()) else part
        point = {name: rest.pop(name, None) for name in POINT_FIELDS}
        key = rest.pop("key", None)
        outcome = rest | {"timing": groups["timing"], "state": groups["state"]}
        whole = {"key": key, "point": point, "outcome": outcome, "rate": groups["rate"]}
        return cls.model_validate(whole | {"origin": groups["origin"]})
