"""Times that can't be: faster than the device's ceiling allows, or than any launch. Imports no torch."""

from __future__ import annotations

from kernel_pipeline.records.measurement import Outcome, Rate

MOST_OF_CEILING = {"perf_counter": 6.0}
MOST_OF_A_GPUS_CEILING = 1.5
"""Times the ceiling while cold, by timer: it is measured, by one kernel at one size, and a GPU may do a
little better for another. A CPU's is measured while other programs may run, and is a little low then; one
that they disturbed is none."""

LEAST_US = {"graph": 0.4, "perf_counter": 0.03}
"""Shorter is no launch of a kernel, and no call of a function from Python, by timer."""


def doubt(outcome: Outcome, rate: Rate | None) -> str | None:
    """Why a timing can't be, in a sentence; None for one that can, or where there is none."""
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
    """The outcome and its rate; ``incorrect``, and none, for a timing that can't be."""
    reason = doubt(outcome, rate)
    if reason is None:
        return outcome, rate
    return Outcome(status="incorrect", error=reason, launch=outcome.launch), None
