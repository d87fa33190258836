"""The worker: the process that runs one provider on the device and answers one request at a time.

``fork_server`` forks it below a reaper. It gets the descriptors of its end of a socket pair and of the memory
that it shares with the verifier on a CPU."""

from __future__ import annotations

import os
from contextlib import suppress
from math import ceil
from multiprocessing.connection import Connection
from time import perf_counter

import torch

from ..machine import torch_install
from ..machine.reaper import die_with
from ..records.base import Record
from ..records.fields import SAMPLE_DIGITS, rounded
from ..records.measurement import Sustained
from ..statistics.quantiles import quantile
from ..timing.call_readings import bytes_of_call, host_us
from ..timing.launch_gap import SetMode
from ..timing.monitor import Energy, Monitor, counter
from ..timing.stopwatch import COLD_FACTOR, Another, last_level_cache, ring
from ..timing.timers import Rotation
from ..timing.timers.capture import capture
from ..timing.timers.event import recorded, timed
from .faults import failed
from .message_connection import receive, send, serve
from .protocol import (
    Again,
    Arm,
    Begin,
    CallsRead,
    Echo,
    Echoed,
    Empty,
    End,
    Go,
    ModeSet,
    ModeWanted,
    PrepareWeights,
    Rate,
    ReadCalls,
    Release,
    Setup,
    Show,
    Stamp,
    Sustain,
    Time,
)
from .provider_runner import ProviderRunner
from .weights import apart

SAMPLES = 50
"""The number of turns that are timed after the seconds of work. They are far shorter than the work."""

LOOK_S = 0.1
"""The interval at which the elapsed time is checked. The device's queue never runs empty at a check."""


class Endurance(ProviderRunner):
    """A ProviderRunner that also times a provider after seconds of its calls, without a rest."""

    def answer(self, request: Record) -> Record:
        """Answer any request. Raises whatever the provider raises."""
        if isinstance(request, ReadCalls):
            return self.read_calls(request)
        return self.sustain(request) if isinstance(request, Sustain) else super().answer(request)

    def read_calls(self, request: ReadCalls) -> CallsRead:
        """Call the provider a few more times, and take the readings."""
        running, call = self._now, self._now.found.call
        given = tuple(map(apart, running.taken))
        on_host = request.host and self.device.type == "cuda"
        return CallsRead(
            host_us=host_us(call, given) if on_host else None,
            peak_mib=bytes_of_call(call, given, running.in_place) / 2**20 if request.memory else None,
        )

    def sustain(self, request: Sustain) -> Sustained:
        """Time the provider after seconds of its calls.

        Raises NotCapturableError for a call that no graph can hold.
        """
        running = self._now
        rotation = Rotation(running.found.call, (running.taken,), running.in_place)
        another = self.another(running.found)
        return sustained(rotation, another, running.bytes, request.seconds, self.stopwatch.gap.set_mode)


def sustained(
    rotation: Rotation, another: Another | None, bytes_: int, seconds: float, set_mode: SetMode
) -> Sustained:
    """Replay a call over a ring for ``seconds``, and time the turns after that.

    The ring has the rotation's only set of inputs and further sets that ``another`` makes. ``bytes_`` is the
    size of a set's inputs and outputs. ``set_mode`` sets the mode of the launch gap before the work.

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
            # One turn is queued while another runs, and no more: so the queue is short when the work ends.
            last.synchronize()
            last = now
            calls += turns.launches
            if energy is not None:
                energy.look(calls)
    samples = [us / turns.launches for us in timed(turns.turn, SAMPLES)]
    state = monitor.read()
    return Sustained(
        median_us=quantile(sorted(samples), 0.5),
        samples_us=tuple(rounded(sample, SAMPLE_DIGITS) for sample in samples),
        sm_clock_mhz=state.sm_clock_mhz,
        power_w=state.power_w,
        throttle=state.throttle,
        joules=None if energy is None else energy.per_call(),
    )


REQUESTS = (
    *(Begin, Time, Stamp, Again, Arm, PrepareWeights, Empty, Go, Show),
    *(Sustain, ReadCalls, End, Echo, Rate, Release),
)


def healthy(device: str) -> bool:
    """Whether the device still works in this process."""
    if device == "cpu":
        return True
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return False
    return True


def prepare(device: str) -> None:
    """Do the part of a worker's start-up that does not touch its device, once before the fork."""
    if device == "cpu":
        torch_install.resolve_vector_math()
    else:
        load_triton()


def load_triton() -> None:
    """Import the modules of Triton's first launch, and hash Triton itself, as each process has to.

    It takes half a second, much of it without the GIL. These are internals of Triton that differ between
    versions. If this fails, the first launch does the same.
    """
    with suppress(Exception):
        import triton.backends.nvidia.compiler
        import triton.backends.nvidia.driver  # noqa: F401
        from triton.runtime.cache import triton_key

        triton_key()


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
