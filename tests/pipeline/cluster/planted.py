"""A cluster without Ray: stations that answer in this process, and are lost when a test says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pipeline.cluster.engine import LostError, Node
from pipeline.cluster.gathering import Member
from pipeline.cluster.messages import (
    AddedPoints,
    ClusterDevice,
    Described,
    Digests,
    NumberedOutcome,
    StationOutcomes,
)
from pipeline.machine import device
from pipeline.points.point import Point
from pipeline.store.environment import Environment
from pipeline.store.record import Outcome, State
from tests import factory


def always(point: Point) -> bool:
    return True


class Planted:
    """A station. ``survives`` says at which points it is not lost, ``at_once`` how many it measures before it
    answers."""

    def __init__(
        self,
        described: Described,
        survives: Callable[[Point], bool] = always,
        digests: Digests | None = None,
        at_once: int = 1,
    ) -> None:
        self.described = described
        self.at_once = at_once
        self.survives = survives
        self.digests = digests
        self.measured: list[Point] = []
        self.points: dict[int, Point] = {}
        self.held: list[int] = []
        self.is_ended = False

    def ask(self, method: str, *words: Any) -> Any:
        if self.is_ended:
            raise LostError("it was ended")
        return getattr(self, method)(*words)

    def asked(self, method: str, *words: Any) -> Any:
        return lambda: self.ask(method, *words)

    def answer(self, asked: Callable[[], Any]) -> Any:
        return asked()

    def end(self) -> None:
        self.is_ended = True

    def describe(self) -> str:
        return self.described.model_dump_json()

    def begin(self, wait_s: float | None) -> None: ...

    def build(self, where: str, providers: list[str]) -> dict[str, str]:
        return {}

    def control(self, where: str, point: str) -> str:
        return json.dumps({"us": 10.0, "ticks": 0, "of_ticks": 0, "neighbours": 0})

    def measure(self, wanted: str) -> str:
        self.points |= AddedPoints.model_validate_json(wanted).points
        self.held.append(len(self.points))
        found = []
        for number in list(self.points)[: self.at_once]:
            point = self.points.pop(number)
            if not self.survives(point):
                self.is_ended = True
                raise LostError("its host is gone")
            self.measured.append(point)
            outcome = Outcome(status="ok", max_abs_err=0.0, timing=factory.timing(7.0), state=State())
            found.append(NumberedOutcome(number=number, outcome=outcome))
        return StationOutcomes(found=tuple(found)).model_dump_json()


def described(environment: Environment | None = None, **packages: str) -> Described:
    """What a station of a GPU finds."""
    found = environment or factory.environment()
    where = device.Device(kind="cuda", name=found.name, index=0, uuid="GPU-planted")
    return Described(device=where, gpu=None, environment=found, packages=packages, missing=())


def member(number: int, station: Planted, again: Callable[[], Planted] | None = None) -> Member:
    """A member whose station is planted."""
    node = Node(str(number), f"host{number}", number, 1)
    place = ClusterDevice(**station.described.device.model_dump(), node=number)

    def gone() -> Planted:
        raise LostError("its host is gone")

    return Member(node, station, station.described, place, again or gone)  # type: ignore[arg-type]  # it is asked alike
