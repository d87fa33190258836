"""Read a GPU's state: clocks, temperature, power, throttle reasons, and energy."""

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
"""NVML's reasons for throttled clocks. Idleness and clocks set by an administrator are not included, because
they do not mean that the device could not keep up."""


class Monitor:
    """Reads the state of one GPU, found by its UUID."""

    def __init__(self, uuid: str) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read(self) -> State:
        """Return the current state. Values that the device or driver does not report are None."""
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
    """Measures the energy per call by a counter.

    ``read`` returns the counter in joules, or None if the device has none. The counter is refreshed rarely,
    on an H200 every 0.1 s or more, and many calls run between two refreshes. So the energy and the calls are
    counted from the first observed refresh to the last.
    """

    def __init__(self, read: Callable[[], float | None]) -> None:
        self._read = read
        self._before = read()
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def look(self, calls: int) -> None:
        """Check whether the counter was refreshed, after ``calls`` calls in total."""
        now = self._read()
        if now is None or now == self._before:
            return
        self._before = now
        self._last = now, calls
        if self._first is None:
            self._first = self._last

    def per_call(self) -> float | None:
        """Return the joules per call; None if fewer than two refreshes were observed."""
        if self._first is None or self._last is None or self._last[1] == self._first[1]:
            return None
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])


def counter(uuid: str) -> Callable[[], float | None]:
    """Return a function that reads the energy in joules of the GPU with this UUID since its driver was
    loaded."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read() -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except pynvml.NVMLError:
            return None

    return read
