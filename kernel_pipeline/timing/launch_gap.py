"""The launch gap of CUDA graphs: set its fast mode before samples, and check the mode by the canary.

A process replays its graphs in one of two modes. In the fast mode the replay time per launch is the kernel's
duration as CUPTI measures it. In the slow mode each launch takes 0.12 to 0.36 us longer (H100, driver
580.159). The fourth graph that a process captures, or work on more than about four streams, makes all its
graphs slow. Any work in another context on the GPU makes them fast again. The cause is not known; pytorch
issue 161104 and tritonbench issue 346 report the same. docs/measuring.md shows both modes by a script.

So the mode is set after the captures, by work in another context. The canary, a graph of a known kernel, is
replayed before and after the samples.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from statistics import median

import torch

from ..records.ceilings import NEAR, Canary
from .monitor import Monitor
from .timers import Reading, Rotation, cupti
from .timers.capture import Ring, capture
from .timers.event import timed

SetMode = Callable[[], None]
"""A function that does some work in another context on the GPU and returns when it is done."""

SHAPE = (256, 256)
"""The shape of the float32 tensors that the canary squares; a launch takes 1.6 us in an H100's fast mode."""

LAUNCHES = 128
"""Launches in a replay of the canary, each on its own tensor; a replay takes 0.2 ms."""

REPLAYS = 4
"""Timed replays in one reading of the canary, after one untimed replay; a reading takes 1 ms."""

READINGS = 5
"""Readings whose median is the canary's time."""

MATTERS = 0.005
"""A slow mode that adds less than this share to a time is ignored. The canary is also slow when long kernels
drive the GPU to its power limit, which lowers the clock."""

CLOCK = 0.02
"""The relative difference up to which clocks count as equal."""


class LaunchGap:
    """Sets the mode of this process's launch gap, and reads the canary. ``known`` holds the canary's times;
    None until they are known."""

    def __init__(self, set_mode: SetMode) -> None:
        self.set_mode = set_mode
        self.known: Canary | None = None
        self._ring: Ring | None = None

    def read(self) -> float:
        """Return the current time of a launch of the canary, in microseconds."""
        ring = self._canary()
        ring.turn()
        return median(timed(ring.turn, REPLAYS)) / LAUNCHES

    def know(self, canary: Canary | None, monitor: Monitor) -> None:
        """Set the canary's known times. If the GPU's clock differs from the clock of these times, measure the
        canary again."""
        self.known = canary
        if canary is None or canary.sm_clock_mhz is None:
            return
        self.read()
        clock = monitor.read().sm_clock_mhz
        if clock is not None and abs(clock / canary.sm_clock_mhz - 1) > CLOCK:
            self.known = self.calibrated(monitor)

    def calibrated(self, monitor: Monitor) -> Canary:
        """Measure the canary's time on this GPU after setting the mode, and its duration by CUPTI."""
        fast = []
        for _ in range(READINGS):
            self.set_mode()
            fast.append(self.read())
        clock = monitor.read().sm_clock_mhz
        stamps = cupti.stamped(self._canary().turn, LAUNCHES)
        duration = None if stamps is None else stamps.duration_us
        return Canary(fast_us=median(fast), duration_us=duration, sm_clock_mhz=clock)

    def excess_us(self, reading: Reading) -> float:
        """Return by how many microseconds a launch may have been late at a reading; 0 in the fast mode."""
        if self.known is None:
            return 0.0
        late = reading.us - self.known.least_us
        return late if late > NEAR * self.known.least_us else 0.0

    def is_late(self, reading: Reading, time_us: float) -> bool:
        """Whether the reading is so late that setting the mode again could change a time of ``time_us``."""
        can = self.known is not None and self.known.can_be_fast
        return can and self.excess_us(reading) > MATTERS * time_us

    def release(self) -> None:
        """Free the canary's memory until the next reading."""
        self._ring = None

    def _canary(self) -> Ring:
        if self._ring is None:
            sets = torch.randn((LAUNCHES, *SHAPE), device="cuda").unbind()
            self._ring = capture(Rotation(torch.square, tuple((x,) for x in sets)), LAUNCHES)
        return self._ring


class SecondContext:
    """A second CUDA context on a GPU beside torch's. A memset of four bytes in it sets the mode."""

    def __init__(self, device: torch.device) -> None:
        """Create the context. Raises RuntimeError if that fails."""
        torch.zeros(1, device=device)  # torch's context, current in this thread
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._context, self._memory = ctypes.c_void_p(), ctypes.c_uint64()
        self._do("cuCtxCreate_v2", ctypes.byref(self._context), 0, torch.cuda.current_device())
        try:
            self._do("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(4))
        except RuntimeError:
            self.close()  # makes torch's context current again
            raise
        self._leave()

    def set_mode(self) -> None:
        """Put the launch gap of this process's graphs into the fast mode, which takes 0.2 ms."""
        self._do("cuCtxPushCurrent_v2", self._context)
        try:
            self._do("cuMemsetD32_v2", self._memory, 0, ctypes.c_size_t(1))
            self._do("cuCtxSynchronize")
        finally:
            self._leave()

    def close(self) -> None:
        """Destroy the context and free its device memory."""
        self._do("cuCtxDestroy_v2", self._context)

    def _leave(self) -> None:
        self._do("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _do(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with CUDA error {code}")
