"""Call and time a provider at a point in this process. Another process verifies the outputs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any, Literal

import torch

from .. import verification
from ..execution import instance, interpreter
from ..loading import Tensors
from ..machine.torch_install import keep_freed_memory
from ..records.base import Record
from ..records.ceilings import Rates
from ..records.fields import SAMPLE_DIGITS, rounded
from ..records.measurement import Timing
from ..records.settings import TimingSettings
from ..statistics.quantiles import quantile, relative_half_width
from ..timing import rates
from ..timing.launch_gap import LaunchGap, SetMode
from ..timing.stopping import Count
from ..timing.stopwatch import Another, Stopwatch
from ..timing.timers import Rotation, Samples, capture, cupti
from ..timing.timers.graph import sampled
from .faults import FaultyError
from .files_read import listening
from .instance import Instance, call_all, fill, first_outputs, memory_of, refuse_changed
from .launch_recorder import recorded
from .process_state import ProcessState
from .protocol import (
    Again,
    Arm,
    Begin,
    Done,
    Empty,
    End,
    Ended,
    Go,
    InputValues,
    Layout,
    PrepareWeights,
    Ran,
    Rate,
    Release,
    Shared,
    Show,
    Stamp,
    Stamped,
    Time,
    Timed,
)
from .running_provider import Armed, Running
from .shared_memory import SharedMemory, like
from .weights import apart

SHORTEST_US = 1e-3
"""A shorter sample means that the clock stood still."""

STAMPED = 20
"""The number of timed turns of the graph that are compared with CUPTI's records."""


class ProviderRunner:
    """Run providers on one device of this process, one step for each request."""

    def __init__(
        self,
        device: str,
        settings: TimingSettings,
        descriptor: int,
        set_mode: SetMode,
        values: InputValues = "normal",
    ) -> None:
        self.device = torch.device(device)
        self.settings = settings
        self.values = values
        self.stopwatch = Stopwatch(self.device, settings, set_mode)
        self._memory = SharedMemory(self.device, descriptor)
        self._running: Running | None = None
        self._inputs: tuple[tuple[Layout, ...], Tensors, list[tuple[int, int]]] | None = None
        self._before: ProcessState | None = None
        self._idle: capture.Ring | None = None

    def warm_up(self) -> None:
        """Create the device's context and warm up the stopwatch, so that the first point need not wait."""
        _start_no_monitor()
        if self.device.type == "cpu":
            keep_freed_memory()
        verification.warm_up(self.device)
        self.stopwatch.warm_up()

    def answer(self, request: Record) -> Record:
        """Answer any request. Raises whatever the provider raises."""
        steps: dict[type[Record], Callable[[Any], Record]] = {
            Begin: self.begin,
            Time: self.time,
            Stamp: self.stamp,
            Again: self.again,
            Arm: self.arm,
            PrepareWeights: self.prepare_weights,
            Empty: self.empty,
            Go: self.go,
            Show: self.show,
            End: self.end,
            Rate: self.rate,
            Release: self.release,
        }
        return steps[type(request)](request)

    def begin(self, request: Begin) -> Ran:
        """Call the provider for the first time."""
        listening()  # record the files that are read, before the provider's module is imported
        if self._before is None:
            self._before = ProcessState()
        self.stopwatch.know(request.canary)
        self._memory.map(request.shared.region)
        found = instance.load_instance(request.where, request.point, request.interpreted)
        running = Running(found, self._inputs_as(request.shared), request.shared, request.bytes)
        self._running = running
        self._take(running.inputs)
        running.taken = found.taken(tuple(map(apart, running.inputs)))
        given = tuple(map(apart, running.taken))
        before: Tensors = ()
        if found.weights is not None:
            running.bytes = instance.bytes_of(found, running.taken)
            before = tuple(x.clone() for x in found.weights.prepared(given))
        rotation = Rotation(found.call, (given,), running.in_place)
        with recorded(found) as launched:
            try:
                outputs = first_outputs(found, rotation, request.again)
            except Exception as error:
                if request.interpreted and (reason := interpreter.reason(error)):
                    raise FaultyError("not_judged", reason) from error
                raise
        refuse_changed((given,), running.taken)
        if found.weights is not None and not verification.unchanged(found.weights.prepared(given), before):
            raise FaultyError("incorrect", "changed its prepared weights")
        self._give(outputs, running.inputs, running.taken)
        return Ran(launch=launched())

    def time(self, request: Time) -> Timed:
        """Time the provider. Raises FaultyError for a time that no call can take."""
        running = self._now
        changed = request.to_dict(defaults=False)
        self.stopwatch.large_ring = changed.pop("large_ring", False)
        self.stopwatch.settings = self.settings.replace(**changed)
        running.armed = None
        given = tuple(map(apart, running.taken))
        begin = perf_counter()
        samples, state = self.stopwatch.time(
            running.found.call, given, running.bytes, running.in_place, self.another(running.found)
        )
        took_ms = (perf_counter() - begin) * 1e3
        refuse_changed(samples.rotation.inputs, running.taken)
        running.samples = samples
        if not min(samples.samples_us) >= SHORTEST_US:
            raise FaultyError("incorrect", f"took {min(samples.samples_us):.3g} us, which no call takes")
        timing = summary(samples, self.stopwatch.cache(samples), self.stopwatch.gap)
        timing = timing.replace(large_ring=request.large_ring)
        weights = running.found.weights
        return Timed(
            timing=timing,
            state=state,
            sets=len(samples.rotation.inputs),
            took_ms=took_ms,
            prepare_ms=None if weights is None else weights.least_ms,
        )

    def another(self, found: Instance) -> Another | None:
        """Return the function that makes more inputs for a ring, as the entry takes them, with the values set
        for this process."""
        made = found.another(self.device)
        if made is None or (self.values == "normal" and found.weights is None):
            return made

        def filled(number: int) -> Tensors:
            inputs = made(number)
            fill(inputs, self.values, number)
            return found.taken(inputs)

        return filled

    def stamp(self, request: Stamp) -> Stamped:
        """Read CUPTI's times of the calls that were timed last, in the launch gap's mode of that timing."""
        samples = self._now.samples
        assert samples is not None and samples.turn is not None, "the graph timer's calls are stamped"
        self.stopwatch.gap.set_mode()
        samples.turn()
        gross_us = median(
            sampled(samples.turn, samples.turn, samples.launches, Count(STAMPED), samples.flush)
        )
        stamps = cupti.stamped(samples.turn, samples.launches, samples.flush)
        if stamps is None:
            return Stamped(gross_us=gross_us)
        return Stamped(gross_us=gross_us, recorded_us=stamps.gross_us, duration_us=stamps.duration_us)

    def again(self, request: Again) -> Ran:
        """Write other inputs into a timed set in place, call once more, and share the outputs."""
        running, samples = self._now, self._now.samples
        assert samples is not None, "a provider is timed before it is called as it was timed"
        taken = samples.rotation.inputs[request.set]
        inputs = running.found.given(taken, running.inputs)
        self._take(inputs)
        if running.found.weights is not None:
            running.found.weights.renew(taken, inputs)
        self._give(samples.again(request.set), inputs, taken)
        return Ran()

    def arm(self, request: Arm) -> Done:
        """Prepare a call on each set in shared memory, in the way ``time`` prepares timed calls."""
        running, shared = self._now, request.shared
        running.samples = None
        self._memory.map(shared.region)
        given = tuple(self._tensors(shared.inputs, index) for index in range(shared.sets))
        sets = tuple(map(running.found.taken, given))
        rotation = Rotation(running.found.call, sets, running.in_place)
        places = [self._tensors(shared.outputs, place) for place in range(shared.shown)]
        running.armed = armed = Armed(rotation, shared, places, given=given)
        if self.device.type == "cuda":
            with suppress(capture.NotCapturableError):
                armed.ring = capture.capture(rotation, shared.sets)
                armed.outputs = armed.ring.outputs
        elif not running.in_place:
            kept = rotation.outputs()
            armed.idle = running.found.showing(lambda *inputs: kept)
            armed.rotation = replace(rotation, call=running.found.showing(rotation.call))
        return Done()

    def prepare_weights(self, request: PrepareWeights) -> Done:
        """Prepare the weights of all sets, in the memory that the armed calls read."""
        weights, armed = self._now.found.weights, self._armed
        assert weights is not None, "the verifier knows whether a provider prepares weights"
        for taken, inputs in zip(armed.rotation.inputs, armed.given, strict=True):
            weights.renew(taken, inputs)
        return self._synchronized()

    def empty(self, request: Empty) -> Done:
        """Do all that a try does except the calls: replay a graph of one tiny kernel, or copy outputs."""
        armed = self._armed
        if self.device.type == "cuda":
            if self._idle is None:
                self._idle = capture.capture(Rotation(torch.neg, ((torch.zeros(1, device="cuda"),),)), 1)
            self._idle.turn()
        else:
            call_all(armed.idle, armed.rotation.inputs, armed.places)
        return self._synchronized()

    def go(self, request: Go) -> Done:
        """Call the provider on each set."""
        armed = self._armed
        if armed.ring is not None:
            armed.ring.turn()
        elif self.device.type == "cuda":
            armed.outputs = [armed.rotation.outputs(index) for index in range(armed.shared.sets)]
        else:
            call_all(armed.rotation.call, armed.rotation.inputs, armed.places)
        return self._synchronized()

    def show(self, request: Show) -> Done:
        """Write the outputs of sets into shared memory."""
        armed = self._armed
        if not armed.outputs or self._now.in_place:
            return Done()
        loaded, problem = self._now.found.loaded, self._now.found.problem
        for number, index in enumerate(request.sets):
            outputs = armed.outputs[index]
            assert outputs is not None, "a ring holds outputs for each set"
            declared = loaded.returned(problem, outputs)
            if fault := verification.fault(outputs, declared, armed.rotation.inputs[index], False):
                raise FaultyError("incorrect", fault)
            place = armed.places[armed.shared.place_of(number, index)]
            with torch.no_grad():
                for one, out in zip(place, loaded.placed(problem, outputs), strict=True):
                    one.copy_(out)
        return self._synchronized()

    def _tensors(self, found: tuple[Layout, ...], index: int) -> Tensors:
        return tuple(self._memory.tensor(layout.at(index)) for layout in found)

    @property
    def _armed(self) -> Armed:
        armed = self._now.armed
        assert armed is not None, "sets are armed before they are gone through"
        return armed

    def end(self, request: End) -> Ended:
        """Drop the provider, and report the changes that it left in this process."""
        read = () if self._running is None else listening().outside(self._running.found.loaded.folder)
        self._running = None
        ended = Ended(read=read, compiles="torch._dynamo" in sys.modules)
        if self._before is None:
            return ended
        replaced, changed = tuple(self._before.replaced()), tuple(self._before.running())
        return ended.replace(replaced=replaced, changed=changed)

    def rate(self, request: Rate) -> Rates:
        """Measure the device's ceilings, and on a GPU its canary."""
        found = rates.measure(self.device.type)
        if self.device.type != "cuda":
            return found
        # The matmuls leave memory reserved that the canary may need.
        self.stopwatch.release()
        return found.replace(canary=self.stopwatch.calibrated())

    def release(self, request: Release) -> Done:
        """Unmap the verifier's memory, and free the worker's own if that is more than requested."""
        is_cuda = self.device.type == "cuda"
        self._running = None
        self._memory.release()
        gc.collect()
        if is_cuda and torch.cuda.memory_reserved() <= request.most_bytes:
            return Done()
        self._inputs = self._idle = None
        if is_cuda:
            self.stopwatch.release()
        return Done()

    @property
    def _now(self) -> Running:
        assert self._running is not None, "a provider is begun first"
        return self._running

    def _inputs_as(self, shared: Shared) -> Tensors:
        """Return tensors for the inputs. The tensors of the last point are reused if their layouts are the
        same and no provider has moved or resized their memory."""
        before = self._inputs
        if before is None or before[0] != shared.inputs or memory_of(before[1]) != before[2]:
            before = self._inputs = None
            made = tuple(like(layout, self.device) for layout in shared.inputs)
            before = self._inputs = shared.inputs, made, memory_of(made)
        return before[1]

    # no_grad instead of detach(): a provider's object may define its own detach().
    @torch.no_grad()
    def _take(self, inputs: Tensors) -> None:
        """Copy the inputs in shared memory into ``inputs``."""
        for x, layout in zip(inputs, self._now.shared.inputs, strict=True):
            span = self._memory.span(layout)
            x.as_strided((span.numel(),), (1,)).copy_(span)

    @torch.no_grad()
    def _give(self, outputs: Tensors, inputs: Tensors, taken: Tensors) -> None:
        """Write outputs, and inputs as they are after the call, into shared memory. ``taken`` are the inputs
        as the entry took them. Raises FaultyError for outputs that are not as declared."""
        running = self._now
        loaded, problem = running.found.loaded, running.found.problem
        declared = loaded.returned(problem, outputs)
        if running.in_place:
            outputs = outputs[: len(declared)]
        if fault := verification.fault(outputs, declared, (*inputs, *taken), running.in_place):
            raise FaultyError("incorrect", fault)
        for place, out in zip(running.shared.outputs, loaded.placed(problem, outputs), strict=False):
            self._memory.tensor(place).copy_(out)
        for place, x in zip(running.shared.inputs, inputs, strict=True):
            span = self._memory.span(place)
            span.copy_(x.as_strided((span.numel(),), (1,)))
        self._synchronized()

    def _synchronized(self) -> Done:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return Done()


def _start_no_monitor() -> None:
    """Keep tqdm from starting its monitor thread when Inductor shows progress: a process in which a provider
    has left a thread is replaced."""
    with suppress(ImportError):
        import tqdm  # type: ignore[import-untyped]

        tqdm.tqdm.monitor_interval = 0


def summary(samples: Samples, cache: Literal["cold", "hot"], gap: LaunchGap) -> Timing:
    """Return the statistics of a ledger row, and the samples from which they can be computed again."""
    ordered = sorted(samples.samples_us)
    canary = samples.canary
    return Timing(
        timer=samples.timer,
        cache=cache,
        median_us=quantile(ordered, 0.5),
        p20_us=quantile(ordered, 0.2),
        p80_us=quantile(ordered, 0.8),
        min_us=ordered[0],
        rel_ci=relative_half_width(ordered),
        n_samples=len(ordered),
        samples_us=tuple(rounded(sample, SAMPLE_DIGITS) for sample in samples.samples_us),
        canary_us=None if canary is None else (round(canary.before_us, 4), round(canary.after_us, 4)),
        excess_us=0.0 if canary is None else gap.excess_us(canary),
    )
