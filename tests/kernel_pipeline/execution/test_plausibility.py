"""Which timings no device can have had, at either side of each limit."""

import pytest

from kernel_pipeline.execution.plausibility import judged
from kernel_pipeline.records.measurement import Outcome, Rate, State
from tests import factory


def found(us: float, fraction: float | None, timer: str = "graph", cache: str = "cold") -> Outcome:
    timing = factory.timing(us).replace(timer=timer, cache=cache)
    rate = Rate(bytes=1, flops=1, gbps=1.0, tflops=1.0, bound="memory", ceiling_fraction=fraction)
    outcome = Outcome(status="ok", max_abs_err=0.0, timing=timing, state=State())
    kept, rated = judged(outcome, rate)
    assert (kept is outcome) == (rated is rate) == (kept.status == "ok")
    return kept


@pytest.mark.parametrize(("timer", "least"), [("graph", 0.4), ("perf_counter", 0.03)])
def test_no_call_is_shorter_than_a_launch(timer: str, least: float) -> None:
    assert found(least, 0.5, timer).status == "ok"
    refused = found(least * 0.99, 0.5, timer)
    assert refused.status == "incorrect"
    assert refused.timing is None
    assert str(refused.error).endswith(f"and no call takes less than {least:g} us")


def test_a_timer_without_a_limit_has_none() -> None:
    assert found(0.01, 0.5, "event").status == "ok"


@pytest.mark.parametrize(("timer", "most"), [("graph", 1.5), ("event", 1.5), ("perf_counter", 6.0)])
def test_a_cold_cache_bounds_the_rate_by_the_ceiling(timer: str, most: float) -> None:
    assert found(10.0, most, timer).status == "ok"
    refused = found(10.0, most * 1.01, timer)
    assert refused.status == "incorrect"
    assert "times the ceiling of the device by its timing, with a cold cache" in str(refused.error)
    assert found(10.0, most * 1.01, timer, cache="hot").status == "ok", "a cache may be faster"
    assert found(10.0, None, timer).status == "ok", "no ceiling is known"


def test_what_has_no_time_is_not_doubted() -> None:
    failed = Outcome(status="timeout", error="no answer")
    assert judged(failed, None) == (failed, None)
    timed = Outcome(status="ok", max_abs_err=0.0, timing=factory.timing(0.2), state=State())
    assert judged(timed, None) == (timed, None), "without the work nobody knows a rate"
