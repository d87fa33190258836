"""The control point: one point that is measured repeatedly during a sweep.

Its times show how steady the device is, and which points were measured while the device was not steady.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine import load
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.load import Stolen
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point

INTERVALS = 8
"""The number of intervals between the control point's measurements on one device, unless points are few."""

FEWEST_BETWEEN = 2
"""The minimum number of points between two measurements of the control point."""

SLOW = 1.5
"""The maximum of the control point's time, as a multiple of its shortest time."""

UNSTEADY = f"the control point before or after it took over {SLOW:g} times its shortest time"

MOST_STOLEN = 0.05
"""The maximum share of the cores' time that the host of a virtual machine may take."""

FEWEST_TICKS = 3
"""The minimum number of stolen ticks that count; a tick is 10 ms."""

STOLEN = "the host of this virtual machine gave the cores to others around it"


@dataclass(frozen=True)
class Control:
    """One measurement of the control point.

    ``us`` is its time, or None if it has none. ``stolen`` is the time that a virtual machine's host took so
    far, ``neighbours`` the number of other processes on the GPU.
    """

    us: float | None
    stolen: Stolen
    neighbours: int


@dataclass(frozen=True)
class Steadiness:
    """The findings from the control points of all devices.

    ``noise_floor`` is the spread of their times over the median, including differences between devices; None
    for fewer than three times. ``doubts`` gives the reason for each point that was measured while the device
    was not steady. ``neighbours`` gives the number of other processes on the GPU by point.
    """

    noise_floor: float | None = None
    doubts: Mapping[Point, str] = field(default_factory=dict)
    neighbours: Mapping[Point, int] = field(default_factory=dict)

    def settled(self, row: Measurement, known: Mapping[str, float]) -> Measurement:
        """Return a row of the sweep with the control points' findings. ``known`` is the known noise that
        ``with_noise_floor`` takes.
        """
        state = row.outcome.state
        if state is None:
            return row
        if reason := self.doubts.get(row.point):
            state = state.distrusted(reason)
        state = state.replace(neighbours=self.neighbours.get(row.point))
        return row.with_state(state).with_noise_floor(self.noise_floor, known)


class Controls:
    """The control point's measurements on one device, and the points that were measured between them."""

    def __init__(self, points: int) -> None:
        self._step = max(FEWEST_BETWEEN, ceil(points / INTERVALS))
        self._due = 0
        self._done = 0
        self.taken: list[Control] = []
        self.between: list[list[Point]] = []

    def is_due(self) -> bool:
        """Whether the control point is to be measured before the next point.

        Several points may have been added since the last question.
        """
        if self._done < self._due:
            return False
        self._due = self._step * (self._done // self._step + 1)
        return True

    @property
    def is_open(self) -> bool:
        """Whether points were added since the control point was measured."""
        return bool(self.between and self.between[-1])

    def add_control(self, measured: Control) -> None:
        """Add a measurement of the control point."""
        self.taken.append(measured)
        self.between.append([])

    def add(self, point: Point) -> None:
        """Add a point that was measured."""
        self.between[-1].append(point)
        self._done += 1


def control(worker: Supervisor, where: str, point: Point) -> Control:
    """Measure the control point of the kernel that ``where`` names on a device of this host."""
    worker.keep(where, point)
    timing = worker.measure(where, point).timing
    us = None if timing is None else timing.median_us
    return Control(us, load.stolen(), neighbours(worker.device, measuring=us is not None))


def neighbours(device: Device, measuring: bool) -> int:
    """Return how many other processes compute on a GPU; 0 on a CPU."""
    if device.uuid is None:
        return 0
    return len(load.strangers(load.on_gpu(device.uuid), load.family(os.getpid()), measuring))


def steadiness(devices: Sequence[Controls]) -> Steadiness:
    """Evaluate the control points of all devices at the end of a sweep."""
    times = sorted(one.us for controls in devices for one in controls.taken if one.us is not None)
    doubts: dict[Point, str] = {}
    beside: dict[Point, int] = {}
    for controls in devices:
        least = min((one.us for one in controls.taken if one.us is not None), default=0.0)
        for (first, last), points in zip(pairwise(controls.taken), controls.between, strict=False):
            lost = last.stolen.since(first.stolen)
            reason = None
            if max(first.us or 0.0, last.us or 0.0) > SLOW * least:
                reason = UNSTEADY
            elif lost.ticks >= FEWEST_TICKS and lost.share > MOST_STOLEN:
                reason = STOLEN
            if reason is not None:
                doubts |= dict.fromkeys(points, reason)
            if count := max(first.neighbours, last.neighbours):
                beside |= dict.fromkeys(points, count)
    floor = (times[-1] - times[0]) / times[len(times) // 2] if len(times) >= 3 else None
    return Steadiness(floor, doubts, beside)
