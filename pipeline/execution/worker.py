"""The process that runs one provider: holds the device, answers one request at a time, may die.

Forked by ``fork_server``, below a reaper. Its end of a socket pair is its only way out; the memory that it
shares with the verifier on a CPU is a descriptor, too."""

from __future__ import annotations

import os
from itertools import pairwise
from math import ceil
from multiprocessing.connection import Connection
from time import perf_counter

import torch

from kernel_pipeline.machine import torch_install
from kernel_pipeline.machine.reaper import die_with
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.fields import SAMPLE_DIGITS, rounded
from kernel_pipeline.statistics.quantiles import quantile
from kernel_pipeline.timing.launch_gap import SetMode
from kernel_pipeline.timing.monitor import Energy, Monitor, counter
from kernel_pipeline.timing.stopwatch import COLD_FACTOR, Another, last_level_cache, ring
from kernel_pipeline.timing.timers import Rotation
from kernel_pipeline.timing.timers.capture import capture
from kernel_pipeline.timing.timers.event import recorded
from pipeline.execution import provider_runner
from pipeline.execution.faults import failed
from pipeline.execution.protocol import (
    Again,
    Arm,
    Begin,
    Echo,
    Echoed,
    Empty,
    End,
    Go,
    ModeSet,
    ModeWanted,
    Rate,
    Release,
    Setup,
    Show,
    Stamp,
    Sustain,
    Time,
    receive,
    send,
    serve,
)
from pipeline.execution.provider_runner import ProviderRunner
from pipeline.store.turns import Sustained

SAMPLES = 50
"""Turns that are timed after the work; together they are far shorter than it."""

LOOK_S = 0.1
"""Between two looks at the clock while it works: the device's queue never runs empty."""


class Endurance(ProviderRunner):
    """A trial that also times a provider without a rest."""

    def answer(self, request: Record) -> Record:
        """The answer to any request. Raises whatever the provider does."""
        return self.sustain(request) if isinstance(request, Sustain) else super().answer(request)

    def sustain(self, request: Sustain) -> Sustained:
        """Time the provider after seconds of its calls. Raises NotCapturableError for a call that no graph
        can hold."""
        running = self._now
        rotation = Rotation(running.found.call, (running.inputs,), running.in_place)
        another = self.another(running.found)
        return sustained(rotation, another, running.bytes, request.seconds, self.stopwatch.gap.set_mode)


def sustained(
    rotation: Rotation, another: Another | None, bytes_: int, seconds: float, set_mode: SetMode
) -> Sustained:
    """Replay a call over its only inputs and cold others for the seconds, and time the turns after that, in
    the mode of the launch gap that is set before. Inputs and outputs are ``bytes_``; ``another`` makes inputs
    for the ring.

    Raises NotCapturableError for a call that no graph can hold.
    """
    (inputs,) = rotation.inputs
    sets = ceil(COLD_FACTOR * last_level_cache(inputs[0].device) / max(bytes_, 1))
    turns = capture(Rotation(rotation.call, ring(inputs, sets, another), rotation.in_place), sets)
    set_mode()
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    monitor = Monitor(gpu)
    energy: Energy | None = None
    calls = 0
    begin = perf_counter()
    while (worked := perf_counter() - begin) < seconds:
        if energy is None and worked > seconds / 2:
            energy = Energy(counter(gpu))
        last = recorded()
        looked = perf_counter()
        while perf_counter() - looked < LOOK_S:
            turns.turn()
            now = recorded()
            # One turn waits while another runs, and no more: the queue is short when the work ends.
            last.synchronize()
            last = now
            calls += turns.launches
            if energy is not None:
                energy.look(calls)
    events = [recorded()]
    for _ in range(SAMPLES):
        turns.turn()
        events.append(recorded())
    events[-1].synchronize()
    state = monitor.read()
    samples = [start.elapsed_time(end) * 1e3 / turns.launches for start, end in pairwise(events)]
    return Sustained(
        median_us=quantile(sorted(samples), 0.5),
        samples_us=tuple(rounded(sample, SAMPLE_DIGITS) for sample in samples),
        sm_clock_mhz=state.sm_clock_mhz,
        power_w=state.power_w,
        throttle=state.throttle,
        joules=None if energy is None else energy.per_call(),
    )


REQUESTS = (Begin, Time, Stamp, Again, Arm, Empty, Go, Show, Sustain, End, Echo, Rate, Release)


def healthy(device: str) -> bool:
    """Whether the device still does what it is told in this process."""
    if device == "cpu":
        return True
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return False
    return True


def prepare(device: str) -> None:
    """Do what each worker on such a device would else do for itself, as far as it touches no device."""
    if device == "cpu":
        torch_install.resolve_vector_math()
    else:
        provider_runner.load_triton()


def main(fd: int, memory: int) -> None:
    """Answer requests until the other end closes."""
    die_with(os.getppid())
    connection = Connection(fd)
    setup = receive(connection, Setup)

    def set_mode() -> None:
        send(connection, ModeWanted())
        receive(connection, ModeSet)

    running = Endurance(setup.device, setup.settings, memory, set_mode, setup.values)
    running.warm_up()

    def answer(request: Record) -> Record:
        if isinstance(request, Echo):
            return Echoed(token=request.token)
        try:
            return running.answer(request)
        except Exception as error:
            return failed(error).replace(healthy=healthy(setup.device))

    serve(connection, answer, *REQUESTS)
