"""Refuse impossible times: faster than the device's ceiling allows, or than any launch. Imports no torch."""

from __future__ import annotations

from ..records.measurement import Outcome, Rate

MOST_OF_CEILING = {"perf_counter": 6.0}
MOST_OF_A_GPUS_CEILING = 1.5
"""The highest rate with a cold cache, as a multiple of the ceiling, by timer. A ceiling is measured by one
kernel at one size, and another kernel may be a little faster on a GPU. A CPU's ceiling is a little low if
other programs run meanwhile; a disturbed ceiling is not used."""

LEAST_US = {"graph": 0.4, "perf_counter": 0.03}
"""The shortest time by timer: no launch of a kernel, and no call of a Python function, takes less."""


def doubt(outcome: Outcome, rate: Rate | None) -> str | None:
    """Return a sentence on why a timing is impossible; None if it is possible or there is none."""
    timing = outcome.timing
    if timing is None or rate is None:
        return None
    least = LEAST_US.get(timing.timer, 0.0)
    if not timing.median_us >= least:
        return f"took {timing.median_us:.3g} us by its timing, and no call takes less than {least:g} us"
    fraction = rate.ceiling_fraction
    most = MOST_OF_CEILING.get(timing.timer, MOST_OF_A_GPUS_CEILING)
    if timing.cache == "cold" and fraction is not None and not fraction <= most:
        return f"reached {fraction:.3g} times the ceiling of the device by its timing, with a cold cache"
    return None


def judged(outcome: Outcome, rate: Rate | None) -> tuple[Outcome, Rate | None]:
    """Return the outcome and its rate; for an impossible timing an ``incorrect`` outcome and None."""
    reason = doubt(outcome, rate)
    if reason is None:
        return outcome, rate
    return Outcome(status="incorrect", error=reason, launch=outcome.launch), None
