"""The device's state around the samples: clocks, temperature, power, and what held it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from pipeline.store.record import State

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
