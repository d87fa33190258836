"""The event timer on a simulated device, which runs queued work in order and not before it is queued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from kernel_pipeline.timing.stopping import Count
from kernel_pipeline.timing.timers import Rotation, Samples, event
from kernel_pipeline.timing.timers.event import MOST_WRITES, EventTimer

WRITE_US, KERNEL_US = 25.0, 4.0


class Machine:
    """A host and a device with separate clocks."""

    def __init__(self) -> None:
        self.host_us = 0.0
        self.device_us = 0.0
        self.writes = 0

    def queue(self, takes_us: float) -> float:
        """Queue work now. Return the time at which the device finishes it."""
        self.device_us = max(self.device_us, self.host_us) + takes_us
        return self.device_us

    def synchronize(self) -> None:
        self.host_us = max(self.host_us, self.device_us)

    def zero_(self) -> None:
        self.writes += 1
        self.queue(WRITE_US)


@dataclass
class Event:
    machine: Machine
    at_us: float

    def query(self) -> bool:
        return self.at_us <= self.machine.host_us

    def synchronize(self) -> None:
        self.machine.synchronize()

    def elapsed_time(self, end: Event) -> float:
        return (end.at_us - self.at_us) / 1e3


def measure(
    monkeypatch: pytest.MonkeyPatch,
    machine: Machine,
    host_takes_us: Callable[[int], float],
    flush_bytes: int = 1,
) -> Samples:
    """Time a kernel whose n-th launch takes ``host_takes_us(n)`` on the host."""
    launches = 0

    def call(x: torch.Tensor) -> torch.Tensor:
        nonlocal launches
        machine.host_us += host_takes_us(launches)
        machine.queue(KERNEL_US)
        launches += 1
        return x * 2

    monkeypatch.setattr(event.torch, "empty", lambda *size, **options: machine)
    monkeypatch.setattr(event.torch.cuda, "synchronize", machine.synchronize)
    monkeypatch.setattr(event, "recorded", lambda: Event(machine, machine.queue(0.0)))
    monkeypatch.setattr(event, "perf_counter", lambda: machine.host_us / 1e6)
    return EventTimer(flush_bytes).measure(Rotation(call, ((torch.ones(4),),)), Count(50))


def test_a_fast_host_leaves_the_kernels_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    samples = measure(monkeypatch, machine, lambda launch: 5.0)
    assert samples.samples_us == pytest.approx([KERNEL_US] * 60)
    assert machine.writes == 60 + 1, "once a launch, and once to know how long that takes"


def test_what_a_host_is_late_with_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    # The host is fast during the calibration. After it, launches are slow always, or now and then.
    samples = measure(monkeypatch, machine, lambda launch: 5.0 if launch < 6 else 180.0)
    assert samples.samples_us == pytest.approx([KERNEL_US] * len(samples.samples_us))
    assert len(samples.samples_us) >= 50

    samples = measure(monkeypatch, Machine(), lambda launch: 700.0 if launch % 10 == 9 else 5.0)
    assert samples.samples_us == pytest.approx([KERNEL_US] * len(samples.samples_us))


def test_a_host_that_no_write_covers_is_timed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    samples = measure(monkeypatch, machine, lambda launch: 10_000.0)
    assert min(samples.samples_us) >= 10_000 - MOST_WRITES * WRITE_US
    assert machine.writes == MOST_WRITES * len(samples.samples_us) + 1


def test_a_hot_measurement_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    samples = measure(monkeypatch, machine, lambda launch: 60.0, flush_bytes=0)
    assert machine.writes == 0
    assert len(samples.samples_us) == 60
