"""A GPU's energy for a call, by a counter that the driver refreshes only some ten times a second."""

from __future__ import annotations

from collections.abc import Callable

import pynvml


class Energy:
    """Joules a call between two refreshes of a counter.

    ``read`` gives the joules so far, or None where the device does not tell. Between two refreshes the
    counter stands still: on an H200 for 0.1 s or more, which is longer than many calls take together. So what
    counts is the energy between the first refresh that was seen and the last, and the calls between these.
    """

    def __init__(self, read: Callable[[], float | None]) -> None:
        self._read = read
        self._before = read()
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def look(self, calls: int) -> None:
        """Look whether the counter was refreshed; ``calls`` were made so far."""
        now = self._read()
        if now is None or now == self._before:
            return
        self._before = now
        self._last = now, calls
        if self._first is None:
            self._first = self._last

    def per_call(self) -> float | None:
        """Joules; None where fewer than two refreshes were seen."""
        if self._first is None or self._last is None or self._last[1] == self._first[1]:
            return None
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])


def counter(uuid: str) -> Callable[[], float | None]:
    """What reads the joules that the GPU of this UUID has taken since its driver was loaded."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except pynvml.NVMLError:
            return None

    return read
