"""One point in this process."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from pipeline.execution.trial import Trial
from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.store.ceilings import NO_OVERHEAD
from pipeline.timing.settings import TimingSettings


def square(provider: str, size: int) -> Point:
    problem = Values({"rows": size, "columns": size, "dtype": "float32"})
    return Point(kernel="square", provider=provider, problem=problem)


def test_torch_compile_compiles_once_a_shape() -> None:
    """Verified and timed, it is called under different flags and from different places."""
    torch._dynamo.reset()
    counters.clear()
    trial = Trial("cpu", TimingSettings(stopping="count", min_samples=3), seed=0)
    for size in (17, 33):
        outcome = trial.run("square", square("torch_compile", size), NO_OVERHEAD)
        assert outcome.status == "ok", outcome.error
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize(("failures", "status", "error"), [(1, "ok", None), (2, "out_of_memory", "no room")])
def test_a_point_that_finds_no_memory_is_tried_again_once_after_all_was_released(
    failures: int, status: str, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial("cpu", TimingSettings(stopping="count", min_samples=3), seed=0)
    point = square("torch_square", 17)
    assert trial.run("square", point, NO_OVERHEAD).status == "ok"
    held = weakref.ref(trial._prepared[1].inputs[0]) if trial._prepared else None
    time = trial.stopwatch.time
    freed = []

    def scarce(*arguments: Any) -> Any:
        if len(freed) < failures:
            freed.append(held is not None and held() is None)
            raise torch.OutOfMemoryError("no room. Tried to allocate")
        return time(*arguments)

    monkeypatch.setattr(trial.stopwatch, "time", scarce)
    outcome = trial.run("square", point, NO_OVERHEAD)
    assert (outcome.status, outcome.error) == (status, error)
    assert freed == [False, True][:failures], "what earlier points left is released in between"
