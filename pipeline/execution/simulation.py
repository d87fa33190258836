"""Many devices that measure on a clock of their own: what the driver of a sweep takes is real, what a point
takes on its device is not.

A discrete-event simulation. One driver serves all devices, one after the other. A device that has an outcome
waits until the driver has kept it and has found the next point; then it is busy for as long as that point
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from time import perf_counter, thread_time

from pipeline.execution.crew import Report
from pipeline.execution.schedule import Schedule
from pipeline.machine.device import Device
from pipeline.points.point import Point
from pipeline.store.record import Outcome


@dataclass(frozen=True)
class SimulatedTeam:
    """Devices that share a schedule. ``outcome`` is what a point gives on any of them, and ``keep`` what the
    driver does with that."""

    schedule: Schedule
    devices: Sequence[Device]
    outcome: Callable[[Point], Outcome]
    keep: Report


@dataclass(frozen=True)
class Simulated:
    """``rows`` that were kept; the real seconds that the driver was at work, in all and for the row that took
    longest, and what of them it had a core; the seconds until the last device was done, by the clock of the
    simulation; and those that all devices were busy."""

    rows: int
    driver_s: float
    longest_s: float
    core_s: float
    end_s: float
    devices: int
    busy_s: float

    @property
    def row_s(self) -> float:
        """What the driver takes for a row."""
        return self.driver_s / max(1, self.rows)

    @property
    def idle(self) -> float:
        """The share of their time that devices did not measure, from the first point to the last."""
        return 1 - self.busy_s / (self.devices * self.end_s) if self.end_s else 0.0

    @property
    def waiting(self) -> float:
        """The share of the driver's time in all: near 1 the devices wait for it."""
        return self.driver_s / self.end_s if self.end_s else 0.0


def simulate(
    teams: Sequence[SimulatedTeam],
    seconds: Callable[[Point], float],
    clock: Callable[[], float] = perf_counter,
) -> Simulated:
    """Measure all points of the teams' schedules. ``seconds`` is what a point takes on its device, and
    ``clock`` what the driver's own time is told by. No point may wait for a compiler: nobody would end it."""
    events: list[tuple[float, int, int, Point | None]] = [
        (0.0, number, device, None)
        for number, team in enumerate(teams)
        for device in range(len(team.devices))
    ]
    heapify(events)
    rows, driver_s, longest_s, core_s, free_at, busy_s, end_s = 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    while events:
        at, number, device, measured = heappop(events)
        team = teams[number]
        outcome = None if measured is None else team.outcome(measured)
        begin, core = clock(), thread_time()
        if measured is not None and outcome is not None:
            team.keep(measured, outcome, team.devices[device])
            rows += 1
        point = team.schedule.next(device)
        took = clock() - begin
        core_s += thread_time() - core
        driver_s += took
        longest_s = max(longest_s, took)
        free_at = max(at, free_at) + took
        end_s = free_at
        if point is not None:
            busy = seconds(point)
            busy_s += busy
            heappush(events, (free_at + busy, number, device, point))
    return Simulated(
        rows, driver_s, longest_s, core_s, end_s, sum(len(team.devices) for team in teams), busy_s
    )
