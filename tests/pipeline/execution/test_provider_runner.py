"""A provider in this process, step by step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from kernel_pipeline.contract import Tolerance
from pipeline.execution import verifier
from pipeline.execution.faults import FaultyError
from pipeline.execution.protocol import (
    Again,
    Arm,
    Begin,
    Check,
    Draw,
    Empty,
    End,
    Fill,
    Go,
    Inspect,
    Offer,
    Prepare,
    Prepared,
    Show,
    Spread,
    Time,
)
from pipeline.execution.provider_runner import ProviderRunner
from pipeline.execution.verifier import Verifier
from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.timing.settings import TimingSettings

PLANTED = Path(__file__).parents[2] / "planted"
SETTINGS = TimingSettings(stopping="count", min_samples=3, cache="hot")


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


def square(provider: str, size: int) -> Point:
    problem = Values({"rows": size, "columns": size, "dtype": "float32"})
    return Point(kernel="square", provider=provider, problem=problem)


def packed() -> Point:
    problem = Values({"rows": 3, "columns": 192, "group": 32, "dtype": "float32"})
    return Point(kernel="packed", provider="whole", problem=problem)


def begin(judge: Verifier, where: str, point: Point) -> Begin:
    prepared = judge.prepare(Prepare(where=where, point=point))
    judge.offer(Offer(edition=0))
    return asked(where, point, prepared)


def asked(where: str, point: Point, prepared: Prepared) -> Begin:
    return Begin(
        where=where,
        point=point,
        shared=prepared.shared,
        bytes=prepared.bytes,
        interpreted=prepared.interpreted,
        canary=None,
    )


@pytest.mark.slow
def test_torch_compile_compiles_once_a_shape(memory: int) -> None:
    """Verified and timed, it is called under different flags and from different places."""
    torch._dynamo.reset()
    counters.clear()
    judge, trial = Verifier("cpu", 0, memory), ProviderRunner("cpu", SETTINGS, memory, pytest.fail)
    for size in (17, 33):
        trial.begin(begin(judge, "square", square("torch_compile", size)))
        trial.time(Time())
        shared = judge.spread(Spread(sets=4))
        judge.draw(Draw())
        judge.fill(Fill())
        trial.arm(Arm(shared=shared))
        trial.go(Go())
        trial.show(Show(sets=(0, 3)))
        assert judge.inspect(Inspect(sets=(0, 3))).error is None
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize(
    ("where", "point"),
    [
        ("square", square("torch_square", 17)),
        ("packed", packed()),
        (
            "accumulate",
            Point(
                kernel="accumulate",
                provider="returns_nothing",
                problem=Values({"elements": 100, "dtype": "int32"}),
            ),
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_right_outputs_stay_right_through_every_step(memory: int, where: str, point: Point) -> None:
    """Floating-point, packed integers, in place: each with the inputs of the step and no others."""
    folder = where if where == "square" else str(PLANTED / where)
    judge, trial = (
        Verifier("cpu", 0, memory),
        ProviderRunner("cpu", SETTINGS.model_copy(update={"cache": "cold"}), memory, pytest.fail),
    )
    trial.begin(begin(judge, folder, point))
    assert judge.check(Check(edition=0)).error is None
    timed = trial.time(Time())
    assert timed.sets > 1
    for index in (0, timed.sets - 1):
        judge.offer(Offer(edition=1))
        trial.again(Again(set=index))
        assert judge.check(Check(edition=1)).error is None
        assert judge.check(Check(edition=0)).error is not None, "the editions differ in all values"
    shared = judge.spread(Spread(sets=6))
    assert shared.sets == 6
    judge.draw(Draw())
    judge.fill(Fill())
    trial.arm(Arm(shared=shared))
    all_sets = Inspect(sets=tuple(range(6)))
    for _ in range(3):
        trial.empty(Empty())
        judge.draw(Draw())
        judge.fill(Fill())
        judge.empty(Empty())
        assert judge.inspect(all_sets).error is not None, "nothing is right before the calls"
        trial.go(Go())
        trial.show(Show(sets=(5, 0)))
        assert judge.inspect(all_sets).error is None
    if shared.outputs:
        armed = trial._armed
        armed.outputs = [tuple(x.clone() for x in place) for place in armed.places]
        judge.empty(Empty())
        trial.show(Show(sets=(5, 0, 0)))  # as on a GPU, where calls leave their outputs elsewhere
        assert judge.inspect(Inspect(sets=(5, 0, 0))).error is None
        assert judge.inspect(Inspect(sets=(1,))).error is not None
    ended = trial.end(End())
    assert (ended.replaced, ended.changed) == ((), ())


def test_what_is_not_written_is_never_right(memory: int) -> None:
    """Whatever the memory held: the judge writes there what can't be right, for integers, too."""
    judge = Verifier("cpu", 0, memory)
    for where, point in (
        ("square", square("torch_square", 17)),
        (str(PLANTED / "packed"), packed()),
    ):
        judge.prepare(Prepare(where=where, point=point))
        for edition in (0, 1):
            judge.offer(Offer(edition=edition))
            checked = judge.check(Check(edition=edition))
            assert checked.error is not None and "elements are wrong" in checked.error


def test_an_input_that_was_changed_is_seen_in_shared_memory(memory: int) -> None:
    judge, trial = Verifier("cpu", 0, memory), ProviderRunner("cpu", SETTINGS, memory, pytest.fail)
    problem = Values({"elements": 64, "dtype": "float32"})
    where = str(PLANTED / "faulty")
    trial.begin(begin(judge, where, Point(kernel="faulty", provider="changes_input", problem=problem)))
    assert judge.check(Check(edition=0)).error == "changed its input"


def test_what_does_not_fit_is_said_before_it_is_made(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "memory_available", lambda device: 3 * 10**9)
    judge = Verifier("cpu", 0, memory)
    problem = Values({"elements": 10**9, "dtype": "float32"})
    point = Point(kernel="faulty", provider="right", problem=problem)
    with pytest.raises(FaultyError, match=r"^needs about \d+ GB for inputs and reference; 3 GB are free$"):
        judge.prepare(Prepare(where=str(PLANTED / "faulty"), point=point))


def test_a_reference_is_computed_once_for_all_providers_of_a_problem(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Verifier("cpu", 0, memory)
    made: list[Tolerance] = []
    answered = verifier.answered
    monkeypatch.setattr(verifier, "answered", lambda *given: (made.append(given), answered(*given))[1])
    for provider in ("torch_square", "cpp"):
        judge.prepare(Prepare(where="square", point=square(provider, 17)))
        for edition in (0, 1):
            judge.offer(Offer(edition=edition))
    assert len(made) == 2
