"""Who meets in the finals, by a ledger."""

from __future__ import annotations

import pytest

from kernel_pipeline.contract import Gpu
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain import extension
from pipeline.keys.identity import Identity
from pipeline.points import catalog, choice
from pipeline.points.plan import Target, plan
from pipeline.verdicts import finalists
from pipeline.verdicts.tuning import Caller, Dispatched
from tests import factory

SOFTMAX = catalog.find("softmax")
GPU = Gpu((9, 0), 132, 232448, 50 << 20)


@pytest.mark.parametrize("gets", [None, "cuda"])
def test_a_first_look_is_at_those_that_were_near_the_fastest(
    monkeypatch: pytest.MonkeyPatch, gets: str | None
) -> None:
    environment = factory.environment()
    identity = Identity(SOFTMAX.loaded, environment, TimingSettings(), 0)
    wanted = plan(SOFTMAX, "quick", Target("cuda", GPU), {})
    monkeypatch.setattr(extension, "build", lambda place, sources: {})
    (largest,) = choice.largest(wanted)
    points = {point.provider: point for point in wanted.points if point.problem == largest}
    times = {"torch": 300.0, "manual": 400.0, "torch_compile": 182.0, "triton_tile": 178.0, "cuda": 420.0}
    rows = [
        factory.fresh(
            factory.moved(factory.measurement("softmax", "torch", median_us=us), points[name]), identity
        )
        for name, us in times.items()
    ]
    dispatched = next((Dispatched(row, "exact") for row in rows if row.point.provider == gets), None)
    monkeypatch.setattr(Caller, "gets", lambda self, problem, workload: dispatched)

    def meeting(near: float | None) -> set[str]:
        (one,) = finalists.of_ledger(
            SOFTMAX, wanted, "largest", rows, identity, factory.ceilings(), GPU, near
        )
        return {candidate.point.provider for candidate in one.match.candidates}

    assert meeting(None) == set(times)
    # The baseline stays, and what a caller gets.
    assert meeting(1.1) == {"torch", "torch_compile", "triton_tile", *filter(None, [gets])}
