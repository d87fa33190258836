"""Energy per call from a counter that changes only at its refreshes."""

import pytest

from kernel_pipeline.timing.monitor import Energy


def seen(
    refresh_s: float, power_w: float, call_s: float, seconds: float, calls_a_look: int = 10
) -> float | None:
    """Return the measured energy of back-to-back calls of this length at this power."""
    now = 0.0
    energy = Energy(lambda: now // refresh_s * refresh_s * power_w)
    calls = 0
    while now < seconds:
        now += call_s * calls_a_look
        calls += calls_a_look
        energy.look(calls)
    return energy.per_call()


@pytest.mark.parametrize("call_s", [2e-5, 2e-4, 1.1e-3])
def test_the_energy_is_power_times_time(call_s: float) -> None:
    assert seen(0.1, 690.0, call_s, 1.0) == pytest.approx(690.0 * call_s, rel=0.03)


def test_a_call_that_takes_longer_than_a_refresh() -> None:
    assert seen(0.1, 690.0, 0.25, 2.0, calls_a_look=1) == pytest.approx(690.0 * 0.25, rel=0.05)


def test_nothing_is_said_by_one_refresh_or_none() -> None:
    assert seen(0.1, 690.0, 1e-4, 0.15) is None
    assert seen(10.0, 690.0, 1e-4, 1.0) is None


def test_nothing_is_said_where_the_device_does_not_tell() -> None:
    energy = Energy(lambda: None)
    energy.look(10)
    energy.look(20)
    assert energy.per_call() is None
