"""The launch gap of CUDA graphs: its mode, set fast before samples, and the canary that tells it.

A process replays its graphs in one of two modes. In the fast mode a launch's share of a replay is the
kernel's duration as CUPTI stamps it; in the slow mode each launch takes 0.12 to 0.36 us more (H100, driver
580.159). The fourth graph that a process captures, or work on more than about four streams, makes all its
graphs slow. Work of another context on the GPU, however small, makes them fast again. The cause is not known;
pytorch issue 161104 and tritonbench issue 346 met the same. docs/measuring.md shows both modes by a script.

So the mode is set after the captures, by work of another process, and the canary, a graph of a known kernel,
is replayed before and after the samples.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch

from ..records.ceilings import NEAR, Canary
from .monitor import Monitor
from .timers import Reading, Rotation, cupti
from .timers.capture import Ring, capture
from .timers.event import recorded

SetMode = Callable[[], None]
"""Does some work of another context on the GPU, and returns when it is done."""

SHAPE = (256, 256)
"""The canary squares float32 tensors of this shape, 1.6 us each in the fast mode of an H100."""

LAUNCHES = 128
"""Launches of the canary in a replay, each over tensors of its own: 0.2 ms."""

REPLAYS = 4
"""Replays that are timed in one reading of the canary, after one that is not: 1 ms."""

READINGS = 5
"""Readings by which the canary's time is found."""

MATTERS = 0.005
"""A slow mode that adds less than this share to a time changes nothing: a canary is also late where the power
limit holds the clock down, which long kernels make it do."""

CLOCK = 0.02
"""Clocks that differ by less are the same."""


class LaunchGap:
    """Sets the mode of this process's launch gap, and reads the canary. What is ``known`` of the canary is
    None while that is being found out."""

    def __init__(self, set_mode: SetMode) -> None:
        self.set_mode = set_mode
        self.known: Canary | None = None
        self._ring: Ring | None = None

    def read(self) -> float:
        """Microseconds of a launch of the canary now."""
        ring = self._canary()
        ring.turn()
        events = [recorded()]
        for _ in range(REPLAYS):
            ring.turn()
            events.append(recorded())
        events[-1].synchronize()
        times: list[float] = [start.elapsed_time(end) for start, end in pairwise(events)]
        return median(times) * 1e3 / LAUNCHES

    def know(self, canary: Canary | None, monitor: Monitor) -> None:
        """Take what is known of the canary; at another clock than it is known for, find its times now."""
        self.known = canary
        if canary is None or canary.sm_clock_mhz is None:
            return
        self.read()
        clock = monitor.read().sm_clock_mhz
        if clock is not None and abs(clock / canary.sm_clock_mhz - 1) > CLOCK:
            self.known = self.calibrated(monitor)

    def calibrated(self, monitor: Monitor) -> Canary:
        """The canary's time on this GPU in the mode that was set, and its duration by CUPTI."""
        fast = []
        for _ in range(READINGS):
            self.set_mode()
            fast.append(self.read())
        clock = monitor.read().sm_clock_mhz
        stamps = cupti.stamped(self._canary().turn, LAUNCHES)
        duration = None if stamps is None else stamps.duration_us
        return Canary(fast_us=median(fast), duration_us=duration, sm_clock_mhz=clock)

    def excess_us(self, reading: Reading) -> float:
        """Microseconds by which a launch may have been late at a reading: 0 in the fast mode."""
        if self.known is None:
            return 0.0
        late = reading.us - self.known.least_us
        return late if late > NEAR * self.known.least_us else 0.0

    def is_late(self, reading: Reading, time_us: float) -> bool:
        """Whether setting the mode once more could give a time that differs from this one."""
        can = self.known is not None and self.known.can_be_fast
        return can and self.excess_us(reading) > MATTERS * time_us

    def release(self) -> None:
        """Let go of the canary's memory until it is read again."""
        self._ring = None

    def _canary(self) -> Ring:
        if self._ring is None:
            sets = torch.randn((LAUNCHES, *SHAPE), device="cuda").unbind()
            self._ring = capture(Rotation(torch.square, tuple((x,) for x in sets)), LAUNCHES)
        return self._ring


class SecondContext:
    """A CUDA context beside torch's on one GPU, in which a memset of four bytes sets the mode."""

    def __init__(self, device: torch.device) -> None:
        """Raises RuntimeError where no context can be made."""
        torch.zeros(1, device=device)  # torch's context, current in this thread
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._context, self._memory = ctypes.c_void_p(), ctypes.c_uint64()
        self._do("cuCtxCreate_v2", ctypes.byref(self._context), 0, torch.cuda.current_device())
        try:
            self._do("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(4))
        except RuntimeError:
            self.close()  # which makes torch's context the current one again
            raise
        self._leave()

    def set_mode(self) -> None:
        """Do the work that makes the launch gap of this process's graphs the fast one: 0.2 ms."""
        self._do("cuCtxPushCurrent_v2", self._context)
        try:
            self._do("cuMemsetD32_v2", self._memory, 0, ctypes.c_size_t(1))
            self._do("cuCtxSynchronize")
        finally:
            self._leave()

    def close(self) -> None:
        """Destroy the context, which gives its device memory back."""
        self._do("cuCtxDestroy_v2", self._context)

    def _leave(self) -> None:
        self._do("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _do(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with CUDA error {code}")
