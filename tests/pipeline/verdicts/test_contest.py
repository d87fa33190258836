"""Which processes a contest starts, with supervisors that only count."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

import pytest

from pipeline.machine.device import Device
from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.store.ceilings import NO_OVERHEAD
from pipeline.store.record import Outcome
from pipeline.timing.settings import TimingSettings
from pipeline.verdicts import contest
from pipeline.verdicts.contest import Contest, Limits, Match, Rival, Side
from pipeline.verdicts.statistics import Rule
from tests import factory


class Counted:
    """Stands in for a supervisor: what it was asked to measure, by kernel."""

    made: ClassVar[list[Counted]] = []

    def __init__(
        self, device: Device, settings: TimingSettings, seed: int, timeout_s: float, root: Path
    ) -> None:
        self.root = root
        self.asked: list[str] = []
        self.made.append(self)

    def start(self) -> None:
        pass

    def measure(self, where: str, point: Point) -> Outcome:
        self.asked.append(where)
        return factory.measurement("softmax", "torch", 4096).outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def held(sides: list[Side], monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """The supervisors of two rounds of a match a side, each of two providers."""
    monkeypatch.setattr(Counted, "made", [])
    monkeypatch.setattr(contest, "Supervisor", Counted)
    matches = []
    for side in sides:
        points = (
            Point(kernel=side.where, provider=name, problem=Values({"n": 1})) for name in ("one", "other")
        )
        matches.append(Match(tuple(Rival(side, point, f"{side.name}{point}") for point in points)))
    made = Contest(matches, Limits(2, 2), Rule(), "run", lambda turn: None, lambda turns: None)
    made.hold(Device(kind="cpu", name="CPU"), TimingSettings(), 0, 1.0, NO_OVERHEAD)
    return Counted.made


def test_one_process_a_round_serves_all_kernels_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Path("tree")
    rounds = held([Side("tree", tree, "softmax"), Side("tree", tree, "gelu")], monkeypatch)
    assert [one.asked for one in rounds] == [["softmax", "softmax", "gelu", "gelu"]] * 2


def test_two_sides_have_processes_of_their_own_even_of_one_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thing compared with itself has to show what two processes of it differ by."""
    tree = Path("tree")
    rounds = held([Side("a", tree, "softmax"), Side("b", tree, "softmax")], monkeypatch)
    assert [one.asked for one in rounds] == [["softmax", "softmax"]] * 4
