"""The device's state around the samples: clocks, temperature, power, and what held it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from ..records.measurement import State

HELD_BACK = {
    "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sw_thermal_slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal_slowdown": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
"""NVML's reasons for clocks below what was asked for. Idleness and clocks set by an administrator are not
among them: these say how the device is used, not that it could not keep up."""


class Monitor:
    """Reads the state of one GPU, found by its UUID."""

    def __init__(self, uuid: str) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read(self) -> State:
        """The state now. What this device or driver does not tell is None."""
        reasons = self._ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        held = [name for name, bit in HELD_BACK.items() if reasons & bit]
        power = self._ask(pynvml.nvmlDeviceGetPowerUsage)
        return State(
            sm_clock_mhz=self._ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            mem_clock_mhz=self._ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
            temperature_c=self._ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            throttle=",".join(held) or None,
        )

    def _ask(self, question: Callable[..., Any], *rest: int) -> Any:
        try:
            return question(self._handle, *rest)
        except pynvml.NVMLError:
            return None


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
