"""Compute the share of time in which the GPU is busy, from a trace.

A trace has an event for each kernel: its begin and its duration in microseconds. Kernels of two streams may
run at the same time. Return the share of the time from the first begin to the last end in which at least
one kernel ran. If it is small, the host launches too slowly, and a faster kernel changes nothing.
"""

from __future__ import annotations


def yours(kernels: list[tuple[float, float]]) -> float:
    """Return the busy share of kernels as (begin, duration), in no order."""
    # YOURS: return a number from 0 to 1.
    events = sorted(kernels)
    busy, end = 0.0, events[0][0]
    for begin, duration in events:
        busy += max(0.0, begin + duration - max(begin, end))
        end = max(end, begin + duration)
    return busy / (end - events[0][0])
    # END


def expected(kernels: list[tuple[float, float]]) -> float:
    """Count the hundredths of a microsecond in which a kernel runs."""
    ticks = {
        tick
        for begin, duration in kernels
        for tick in range(round(100 * begin), round(100 * (begin + duration)))
    }
    return len(ticks) / (max(ticks) + 1 - min(ticks))


def cases():
    """One after the other with gaps, two streams, and a kernel within a longer one."""
    yield ([(0.0, 5.0), (10.0, 5.0), (20.0, 5.0)],)
    yield ([(8.0, 10.0), (0.0, 10.0), (25.0, 5.0)],)
    yield ([(0.0, 20.0), (5.0, 3.0), (30.0, 2.5)],)


TOPIC, STEP = "Reading profiles", 4

MISTAKE = """
begin = min(begin for begin, _ in kernels)
end = max(begin + duration for begin, duration in kernels)
return sum(duration for _, duration in kernels) / (end - begin)
"""

HINTS = (
    "A sum of durations counts overlapping time twice. Go through the kernels by their begin.",
    "Keep the latest end so far. A kernel adds only what is beyond it.",
    "busy += max(0, begin + duration - max(begin, end)), then end = max(end, begin + duration).",
)
