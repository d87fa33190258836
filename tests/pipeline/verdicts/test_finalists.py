"""Who meets in the finals, by a ledger."""

import pytest

from kernel_pipeline.contract import Gpu
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain import extension
from pipeline.keys.identity import Identity
from pipeline.points import catalog, choice
from pipeline.points.plan import Plan, Target, plan
from pipeline.verdicts import finalists
from pipeline.verdicts.dispatch import Caller, Dispatched
from tests import factory

SOFTMAX = catalog.find("softmax")
GPU = Gpu((9, 0), 132, 232448, 50 << 20)


IDENTITY = Identity(SOFTMAX.loaded, factory.environment(), TimingSettings(), 0)


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return the points of softmax's quick preset, whose libraries nobody builds."""
    monkeypatch.setattr(extension, "build", lambda place, sources: {})
    return plan(SOFTMAX, "quick", Target("cuda", GPU), {})


def at_largest(wanted: Plan) -> dict[str, Point]:
    """Return a point of each provider at the largest problem."""
    (largest,) = choice.largest(wanted)
    return {point.provider: point for point in wanted.points if point.problem == largest}


def row(point: Point, us: float) -> Measurement:
    return factory.fresh(
        factory.moved(factory.measurement("softmax", "torch", median_us=us), point), IDENTITY
    )


def meeting(wanted: Plan, rows: list[Measurement], near: float | None = None) -> dict[str, Point]:
    """Return the finalists at the largest problem by their providers."""
    (one,) = finalists.of_ledger(SOFTMAX, wanted, "largest", rows, IDENTITY, factory.ceilings(), GPU, near)
    return {candidate.point.provider: candidate.point for candidate in one.match.candidates}


@pytest.mark.parametrize("gets", [None, "cuda"])
def test_a_first_look_is_at_those_that_were_near_the_fastest(
    wanted: Plan, monkeypatch: pytest.MonkeyPatch, gets: str | None
) -> None:
    points = at_largest(wanted)
    times = {"torch": 300.0, "manual": 400.0, "torch_compile": 182.0, "triton_tile": 178.0, "cuda": 420.0}
    rows = [row(points[name], us) for name, us in times.items()]
    dispatched = next((Dispatched(one, "exact") for one in rows if one.point.provider == gets), None)
    monkeypatch.setattr(Caller, "gets", lambda self, problem, workload: dispatched)
    assert meeting(wanted, rows).keys() == set(times)
    # The baseline stays, and what a caller gets.
    near = {"torch", "torch_compile", "triton_tile", *filter(None, [gets])}
    assert meeting(wanted, rows, 1.1).keys() == near


def test_the_best_of_every_sweep_is_a_finalist_whatever_its_preset(
    wanted: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preset chooses the problems, and not the configurations."""
    monkeypatch.setattr(Caller, "gets", lambda self, problem, workload: None)
    points = at_largest(wanted)
    own = points["triton_row"]
    configurations = {point.parameters for point in wanted.points if point.provider == own.provider}
    other = own.replace(parameters=Values({"num_warps": 2}))
    assert other.parameters not in configurations
    rows = [row(points["torch"], 300.0), row(own, 200.0), row(other, 100.0)]
    assert meeting(wanted, rows)["triton_row"] == other
