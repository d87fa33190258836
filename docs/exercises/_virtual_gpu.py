"""A simulated GPU that only counts time: a benchmark of it is exact, gives the same result every time, and
takes no time."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping


class VirtualGpu:
    """A GPU that works off launches in order, and the clock of its host. All times are in microseconds.

    ``launch`` costs the host ``launch_us`` and returns, the first launch of a kernel ``first_us`` more.
    ``synchronize`` waits until the GPU is idle, and costs ``wait_us``. A buffer that is among the last
    ``cached`` ones is in the L2 cache, and the kernel takes ``hot`` times as long. With ``warming`` the GPU
    becomes slower by up to that share while it works. ``noise`` is the deviation of a duration, as a share.
    """

    launch_us = 5.0
    wait_us = 10.0

    def __init__(
        self,
        kernels: Mapping[str, float],
        *,
        first_us: float = 0.0,
        cached: int = 0,
        hot: float = 0.4,
        warming: float = 0.0,
        noise: float = 0.0,
    ) -> None:
        self.true_us = dict(kernels)
        self._first_us, self._hot, self._warming, self._noise = first_us, hot, warming, noise
        self._recent: deque[int] = deque(maxlen=cached)
        self._known: set[str] = set()
        self._random = random.Random(0)
        self._now = self._free = self._worked = 0.0

    def __repr__(self) -> str:
        return f"a virtual GPU with {len(self.true_us)} kernels"

    @property
    def kernels(self) -> list[str]:
        """The names of the kernels."""
        return list(self.true_us)

    def clock(self) -> float:
        """Return the host's time."""
        return self._now

    def launch(self, kernel: str, buffer: int = 0) -> None:
        """Order the kernel over a buffer, and return."""
        self._now += self.launch_us
        if kernel not in self._known:
            self._known.add(kernel)
            self._now += self._first_us
        duration = self.true_us[kernel] * (self._hot if buffer in self._recent else 1.0)
        duration *= 1 + self._warming * (1 - math.exp(-self._worked / 60_000))
        duration *= 1 + self._noise * self._random.gauss(0, 1)
        self._recent.append(buffer)
        self._worked += duration
        self._free = max(self._free, self._now) + duration

    def synchronize(self) -> None:
        """Wait until all launches are done."""
        self._now = max(self._now, self._free) + self.wait_us
