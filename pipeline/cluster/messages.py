"""What a sweep and its stations say to each other: records as JSON, as the processes that measure do."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kernels.contract import Gpu
from pipeline.machine.device import Device
from pipeline.points.frozen import Record
from pipeline.points.point import Point
from pipeline.store.ceilings import Canary, Rates
from pipeline.store.environment import Environment
from pipeline.store.record import Outcome
from pipeline.timing.settings import TimingSettings


class ClusterDevice(Device):
    """A device of a cluster. ``node`` counts the cluster's hosts from 1; their names are in no result."""

    node: int

    def __str__(self) -> str:
        return f"node{self.node}/{super().__str__()}"


class Assignment(Record):
    """What a station is for. ``flags`` are the variables of the sweep's own process that change results:
    those of the hosts don't count. ``drawn`` tells the sweep's checkout from others. A station that
    ``measures`` runs no ``Errand``."""

    kind: str
    measures: bool
    flags: dict[str, str]
    drawn: str
    settings: TimingSettings
    seed: int
    timeout_s: float
    kernels: tuple[str, ...]
    packages: tuple[str, ...]


class Described(Record):
    """What a station finds where it is.

    ``packages`` are versions of those that were asked for and are installed. ``missing`` are the folders of
    kernels that are not there.
    """

    device: Device
    gpu: Gpu | None
    environment: Environment
    packages: dict[str, str]
    missing: tuple[str, ...]


class Digests(Record):
    """Of what keys cover, as it is where a station is: the measuring code's, by provider the source's and the
    environment's."""

    measurement: str
    source: dict[str, str]
    environment: dict[str, str]


class NumberedOutcome(Record):
    """What became of a point that a station has, by the number that it came with."""

    number: int
    outcome: Outcome


class StationOutcomes(Record):
    """What was measured since the station was asked, in its order; and what made the worker be replaced, by
    provider."""

    found: tuple[NumberedOutcome, ...]
    changes: dict[str, str] = Field(default_factory=dict)


class AddedPoints(Record):
    """Points of a kernel that a station is to have beside those that it has, by a number each. It compiles
    all that it has, and measures some. The times of those that are ``audited`` are audited in any case."""

    where: str
    points: dict[int, Point]
    audited: tuple[int, ...] = ()
    canary: Canary | None


class Steady(Record):
    """The control point's time once, and what others had of the device by then."""

    us: float | None
    ticks: int
    of_ticks: int
    neighbours: int


class Errand(Record):
    """A command that runs on a device's host as a whole: its module, the words that it was written with, and
    its options as its schema takes them, ``device`` left out. ``columns`` is how wide its user's terminal
    is."""

    name: str
    words: tuple[str, ...]
    options: dict[str, Any]
    columns: int


class News(Record):
    """What an errand has printed since it was asked last, and its exit code once it has ended."""

    lines: tuple[str, ...]
    code: int | None


class MeasuredRates(Record):
    """A device's own, and whether others had it meanwhile."""

    rates: Rates
    is_disturbed: bool
