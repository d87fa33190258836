"""Which processes rounds start, with supervisors that only count."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.statistics.verdicts import Rule
from pipeline.execution import session
from pipeline.execution.session import Session
from pipeline.store.turns import Turn
from pipeline.verdicts.rounds import Candidate, Match, RoundLimits, Rounds, Side, hold
from tests import factory


class Counted:
    """Stands in for a supervisor: what it was asked to measure, by kernel."""

    made: ClassVar[list[Counted]] = []
    short: ClassVar[str] = ""
    """The provider that has no memory until all supervisors have ended their processes."""

    def __init__(
        self,
        device: Device,
        settings: TimingSettings,
        seed: int,
        timeout_s: float,
        root: Path,
        in_turns: bool = False,
    ) -> None:
        assert in_turns, "providers take turns"
        self.root = root
        self.asked: list[str] = []
        self.events: list[str] = []
        self.made.append(self)

    def launch(self) -> None:
        self.events.append(f"launch after {sum(len(one.asked) for one in self.made)}")

    def start(self) -> None:
        self.events.append(f"start after {sum(len(one.asked) for one in self.made)}")

    def measure(self, where: str, point: Point) -> Outcome:
        self.asked.append(where)
        if point.provider == self.short and not all("close" in one.events for one in self.made):
            return Outcome(status="out_of_memory", error="CUDA out of memory")
        return factory.measurement("softmax", "torch", 4096).outcome

    def close(self) -> None:
        self.events.append("close")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.events.append("end")


GPU, CPU = Device(kind="cuda", name="H100", index=0), Device(kind="cpu", name="CPU")


def on(device: Device) -> Session:
    made = Session(device, TimingSettings(), 0, 1.0, Path("results"))
    vars(made)["ceilings"] = factory.ceilings()
    return made


def held(
    sides: list[Side], monkeypatch: pytest.MonkeyPatch, device: Device = CPU, known: str = ""
) -> list[Counted]:
    """The supervisors of two rounds of a match a side, each of two providers. The second round of the side
    ``known`` was measured before."""
    monkeypatch.setattr(Counted, "made", [])
    monkeypatch.setattr(session, "Supervisor", Counted)
    matches = []
    for side in sides:
        points = (
            Point(kernel=side.where, provider=name, problem=Values({"n": 1})) for name in ("one", "other")
        )
        matches.append(Match(tuple(Candidate(side, point, f"{side.name}{point}") for point in points)))
    made = Rounds(matches, RoundLimits(2, 2), Rule(), "run", lambda turn: None, lambda turns: None)
    every = [one for match in matches for one in match.candidates]
    made.know(turn(one, 1, 100.0) for one in every if one.side.name == known)
    hold([made], on(device))
    return Counted.made


def test_one_process_a_round_serves_all_kernels_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Path("tree")
    rounds = held([Side("tree", tree, "softmax"), Side("tree", tree, "gelu")], monkeypatch)
    assert [one.asked for one in rounds] == [["softmax", "softmax", "gelu", "gelu"]] * 2


def test_one_process_a_round_serves_the_rounds_of_several_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every kernel has its first round before any has its second."""
    monkeypatch.setattr(Counted, "made", [])
    monkeypatch.setattr(session, "Supervisor", Counted)
    several = []
    for kernel in ("softmax", "gelu"):
        side = Side("tree", Path("tree"), kernel)
        points = (Point(kernel=kernel, provider=name, problem=Values({"n": 1})) for name in ("one", "other"))
        match = Match(tuple(Candidate(side, point, str(point)) for point in points))
        several.append(
            Rounds([match], RoundLimits(2, 2), Rule(), "run", lambda turn: None, lambda turns: None)
        )
    hold(several, on(CPU))
    assert [one.asked for one in Counted.made] == [["softmax", "softmax", "gelu", "gelu"]] * 2
    assert all(len(one.turns) == 4 for one in several)


@pytest.mark.parametrize(
    ("device", "known", "second"), [(CPU, "b", ["a"]), (GPU, "b", ["a"]), (GPU, "", ["a", "b"])]
)
def test_on_a_gpu_the_next_rounds_processes_are_launched_in_the_middle_of_a_round(
    monkeypatch: pytest.MonkeyPatch, device: Device, known: str, second: list[str]
) -> None:
    """Neither a process without a match to measure is launched, nor one for a round after the last."""
    sides = [Side(name, Path(name), "softmax") for name in "ab"]
    begun = [one for one in held(sides, monkeypatch, device, known) if one.events]
    assert [one.root.name for one in begun] == ["a", "b", *second]
    assert all(one.asked == ["softmax", "softmax"] for one in begun)
    ahead = ["launch after 2"] if device is GPU else []
    told = [list(dict.fromkeys(one.events)) for one in begun]
    assert told == [["start after 0", "end"]] * 2 + [[*ahead, "start after 4", "end"]] * len(second)


def test_two_sides_have_processes_of_their_own_even_of_one_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thing compared with itself has to show what two processes of it differ by."""
    tree = Path("tree")
    rounds = held([Side("a", tree, "softmax"), Side("b", tree, "softmax")], monkeypatch)
    assert [one.asked for one in rounds] == [["softmax", "softmax"]] * 4


def test_a_provider_without_memory_is_measured_again_by_new_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither side's processes keep memory of earlier problems."""
    monkeypatch.setattr(Counted, "made", [])
    monkeypatch.setattr(Counted, "short", "torch")
    tree, point = Path("tree"), Point(kernel="softmax", provider="torch", problem=Values({"n": 1}))
    match = Match(tuple(Candidate(Side(name, tree, "softmax"), point, name) for name in "ab"))
    rounds = Rounds([match], RoundLimits(2, 2), Rule(), "run", lambda turn: None, lambda turns: None)
    workers: dict[str, Any] = {name: Counted(CPU, TimingSettings(), 0, 1.0, tree, True) for name in "ab"}
    rounds.measure(workers, match, match.candidates[0], 0)
    assert [turn.outcome.status for turn in rounds.timings_of(match.candidates[0])] == ["ok"]


def turn(candidate: Candidate, number: int, time_us: float) -> Turn:
    outcome = factory.measurement("softmax", "torch", 4096, median_us=time_us).outcome
    return Turn(
        side=candidate.side.name,
        key=candidate.key,
        point=candidate.point,
        round=number,
        run="r",
        outcome=outcome,
    )


@pytest.mark.parametrize(("problems", "word"), [(10, "slower"), (9, "undecided")])
def test_on_a_device_of_unknown_noise_two_rounds_decide_what_lies_far_apart(problems: int, word: str) -> None:
    """All problems' rounds together tell how much rounds differ; a few can't."""
    side = Side("tree", Path("tree"), "softmax")
    matches, turns = [], []
    for n in range(problems):
        own, other = (
            Candidate(side, Point(kernel="softmax", provider=name, problem=Values({"n": n})), f"{name}{n}")
            for name in ("own", "other")
        )
        matches.append(Match((own, other), kind="memory"))
        for number, drift in enumerate((1.0, 1.2)):
            turns += [turn(own, number, 100.0), turn(other, number, 140.0 * drift)]
    held = Rounds(matches, RoundLimits(2, 2), Rule(), "run", lambda turn: None, lambda turns: None)
    held.know(turns)
    assert set(held.verdicts().values()) == {word}


def test_only_the_matches_that_a_round_measures_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finals build libraries so: in a fresh clone with all rounds there is nothing to build."""
    monkeypatch.setattr(Counted, "made", [])
    monkeypatch.setattr(session, "Supervisor", Counted)
    side = Side("tree", Path("tree"), "softmax")
    known, new = (
        Match((Candidate(side, Point(kernel="softmax", provider="one", problem=Values({"n": n})), f"{n}"),))
        for n in (1, 2)
    )
    rounds = [turn(known.candidates[0], number, 100.0) for number in (0, 1)]

    def prepared(*matches: Match) -> list[tuple[Match, ...]]:
        prepared_matches: list[tuple[Match, ...]] = []
        held = Rounds(
            matches,
            RoundLimits(2, 2),
            Rule(),
            "run",
            lambda turn: None,
            lambda turns: None,
            prepare=lambda matches: prepared_matches.append(tuple(matches)),
        )
        held.know(rounds)
        hold([held], on(CPU))
        return prepared_matches

    assert prepared(known) == []
    assert prepared(known, new) == [(new,), (new,)]
    # A turn that read a file that the key lacks counts no more.
    rounds[1] = rounds[1].replace(outcome=rounds[1].outcome.replace(unkeyed="~/weights.bin"))
    assert prepared(known, new) == [(new,), (known, new)]
