"""``bench``: time any function of tensors in the caller's process.

On a GPU ``bench`` replays CUDA graphs that go round a ring of inputs, in the fast mode of the launch gap (see
``timing.launch_gap``). The time of a call is the replay time divided by the calls in it. The outputs of the
timed replays are verified afterwards. A function that can't be captured into a graph is timed by CUDA events,
and a function on the CPU by the host's clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, Literal

import pynvml
import torch
from torch.nn import Module

from . import known_ceilings, verification
from .arguments import (
    Arguments,
    BenchError,
    Make,
    arguments,
    copied,
    equal,
    made,
    on_device,
    returns_tensors,
    tensors_of,
)
from .checking import Tolerances, compared, expect
from .loading import Tensors, as_tuple
from .machine import load
from .records.ceilings import Rates
from .records.measurement import State
from .records.settings import TimingSettings
from .statistics.quantiles import median_interval, quantile
from .timing.launch_gap import SecondContext
from .timing.stopwatch import MOST_SETS, Another, Stopwatch, spanned
from .timing.timers import Rotation, Samples, spoil
from .timing.timers.capture import NotCapturableError, capture

RING_SEED = 1 << 20
"""Added to the number of a further input set to get its seed for ``make``."""

HOST_CALLS = 30
"""Calls that measure the host's time; few enough that the GPU's launch queue never fills."""


UNKNOWN_MODE_US = 0.4
"""Microseconds that the slow mode of the launch gap may add to a launch: an H100 showed 0.12 to 0.36."""

TRIES = 3
"""The most attempts to sample on a CPU whose cores other processes use."""


@dataclass(frozen=True)
class BenchResult:
    """The time of a function, in microseconds per call.

    median_us, interval:
        The median of the samples, and its 95 % confidence interval.
    valid, why:
        Whether the time can be trusted. If not, ``why`` gives the reason: a wrong output, a throttled GPU,
        busy cores.
    timer, cache:
        The timer (``graph``, ``event`` or ``perf_counter``), and the state of the cache (``cold`` or
        ``hot``).
    host_us:
        The host's time until a call returns; None on a CPU, where it equals ``median_us``.
    gbps, tflops, of_ceiling:
        The rates computed from the given bytes and operations, and their share of the device's ceiling.
    notes:
        Remarks on how the function was timed.
    hot:
        With ``cache="both"`` the result over a hot cache.
    forward, backward_us:
        With ``backward=True`` this result times both passes together, ``forward`` is the result of the
        forward pass alone, and ``backward_us`` is the difference of the medians.
    """

    name: str
    device: str
    median_us: float
    interval: tuple[float, float]
    samples_us: tuple[float, ...] = field(repr=False)
    timer: str
    cache: Literal["cold", "hot"]
    valid: bool = True
    why: str = ""
    host_us: float | None = None
    gbps: float | None = None
    tflops: float | None = None
    of_ceiling: float | None = None
    notes: tuple[str, ...] = ()
    state: State | None = field(default=None, repr=False)
    hot: BenchResult | None = None
    forward: BenchResult | None = None
    backward_us: float | None = None

    def __repr__(self) -> str:
        return f"{self.name}: {', '.join(self._words())}{'' if self.valid else f'; not valid: {self.why}'}"

    def _words(self) -> Iterator[str]:
        low, high = self.interval
        yield f"{self.median_us:.4g} us [{low:.4g}, {high:.4g}]"
        if self.forward is not None and self.backward_us is not None:
            yield f"forward {self.forward.median_us:.4g} us, backward {self.backward_us:.4g} us"
        if self.hot is not None:
            yield f"hot {self.hot.median_us:.4g} us"
        if self.gbps is not None:
            yield f"{self.gbps:.4g} GB/s"
        if self.tflops is not None:
            yield f"{self.tflops:.4g} TFLOP/s"
        if self.of_ceiling is not None:
            yield f"{self.of_ceiling:.0%} of the ceiling"
        if self.host_us is not None:
            yield f"host {self.host_us:.3g} us"
        yield f"{self.cache} cache, {len(self.samples_us)} samples by {self.timer}"

    def _repr_html_(self) -> str:
        """Return the result as an HTML table, for a notebook."""
        rows = [
            ("time", f"{self.median_us:.4g} us"),
            ("interval", "{:.4g} to {:.4g} us".format(*self.interval)),
        ]
        rows += [("hot cache", f"{self.hot.median_us:.4g} us")] if self.hot else []
        rows += [("bandwidth", f"{self.gbps:.4g} GB/s")] if self.gbps is not None else []
        rows += [("rate", f"{self.tflops:.4g} TFLOP/s")] if self.tflops is not None else []
        rows += [("of the ceiling", f"{self.of_ceiling:.0%}")] if self.of_ceiling is not None else []
        rows += [("host", f"{self.host_us:.3g} us")] if self.host_us is not None else []
        rows += [("timer", f"{self.timer}, {self.cache} cache"), ("valid", "yes" if self.valid else self.why)]
        cells = "".join(f"<tr><th>{name}</th><td>{_escaped(text)}</td></tr>" for name, text in rows)
        return f"<table><caption>{_escaped(self.name)}</caption>{cells}</table>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


@dataclass(frozen=True)
class Subject:
    """A function with the inputs that it is timed on.

    ``another(number)`` returns the tensors of a further input set; ``copies`` says that further sets are
    copies of the given inputs.
    """

    name: str
    function: Callable[..., Any]
    arguments: Arguments
    another: Another
    copies: bool

    @property
    def device(self) -> torch.device:
        """The device of the inputs."""
        return self.arguments.tensors[0].device


def subject(
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    make: Make | None,
    keywords: Mapping[str, Any] | None,
    name: str | None,
) -> Subject:
    """Return a function with the given inputs or the inputs that ``make`` makes. Raises BenchError if both or
    neither are given."""
    if (make is None) == (not inputs):
        raise BenchError("pass either the inputs of a call or make=, which makes them from a seed.")
    title = name or str(getattr(function, "__name__", type(function).__name__))
    if make is None:
        given = arguments(inputs, keywords)
        return Subject(title, function, given, lambda number: given.tensors, copies=True)
    first = made(make, 0, keywords)
    form = [(x.shape, x.stride(), x.dtype) for x in first.tensors]

    def another(number: int) -> Tensors:
        more = made(make, RING_SEED + number, keywords).tensors
        if [(x.shape, x.stride(), x.dtype) for x in more] != form:
            raise BenchError("make= must give tensors of the same shapes, strides and dtypes for every seed.")
        return more

    return Subject(title, function, first, another, copies=False)


@contextmanager
def stopwatch(device: torch.device, settings: TimingSettings, context: bool) -> Iterator[Stopwatch]:
    """Yield a stopwatch for a device of this process. With ``context`` a second CUDA context, which is
    destroyed at the end, sets the mode of the launch gap."""
    if device.type != "cuda":
        yield Stopwatch(device, settings, lambda: None)
        return
    with torch.cuda.device(device), ExitStack() as stack:
        second = _second_context(device) if context else None
        if second:
            stack.callback(_quietly, second.close)
        try:
            watch = Stopwatch(device, settings, second.set_mode if second else lambda: None, uuid_of(device))
        except pynvml.NVMLError as error:
            raise BenchError(f"NVML can't read the state of {device}: {error}.") from error
        stack.callback(_quietly, watch.release)
        watch.know(watch.calibrated() if second else None)
        yield watch


def _quietly(clean_up: Callable[[], None]) -> None:
    """Clean up without raising: after a GPU fault cleaning up fails too, and would hide the first error."""
    with suppress(RuntimeError):
        clean_up()


def uuid_of(device: torch.device) -> str:
    """Return the UUID of a GPU in the form that NVML takes."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _second_context(device: torch.device) -> SecondContext:
    try:
        return SecondContext(device)
    except (RuntimeError, OSError) as error:
        raise BenchError(
            f"no second CUDA context could be made to set the mode of the launch gap ({error}): free half a "
            "gigabyte of device memory, or write context=False, which widens the interval."
        ) from error


def bench(  # noqa: PLR0913
    function: Callable[..., Any],
    *inputs: Any,
    make: Make | None = None,
    keywords: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    tolerance: Tolerances = None,
    bytes: int | None = None,
    flops: int | Mapping[str, int] | None = None,
    cache: Literal["cold", "hot", "both"] = "cold",
    backward: bool = False,
    context: bool = True,
    ceilings: Rates | bool = True,
    seconds: float = 0.1,
    name: str | None = None,
) -> BenchResult:
    """Time a function of tensors: a function of torch or Triton, a CUDA operator, a module, any callable.

    inputs, keywords:
        The positional and named arguments of a call.
    make:
        ``make(seed)`` returns the positional arguments of a call, as a tuple or one tensor. Pass either
        ``inputs`` or ``make``. The timed calls go round a ring of input sets, each made from another seed;
        without ``make`` the sets are copies of the inputs. For a cold cache the sets together are three times
        as large as the last-level cache.
    reference:
        A function that returns the right outputs. It is called with floating-point inputs in float64. Without
        a reference the outputs of the timed calls are compared with those of an untimed call. A wrong output
        makes the result invalid.
    tolerance:
        The ``(rtol, atol)`` of that comparison; by default a few units in the last place.
    bytes, flops:
        The least bytes that a call moves, and its operations, as a number or by arithmetic
        (``{"bfloat16": n}``). They give the rates and the share of the device's ceiling.
    cache:
        ``cold``, ``hot`` (one input set), or ``both``.
    backward:
        Time the forward and backward pass together; the result's ``forward`` times the forward pass alone.
    context:
        Create a second CUDA context, which sets the mode of the launch gap. It takes 0.2 s and half a
        gigabyte of device memory, and is destroyed at the end.
    ceilings:
        The ceilings of this device. True measures them once and keeps them in the user's cache; False
        leaves ``of_ceiling`` out.
    seconds:
        The longest time to sample; sampling ends earlier when the median is known to 0.5 %.
    name:
        The function's name in the result.

    >>> bench(torch.square, torch.randn(256, 256)).valid
    True

    Raises BenchError if the function can't be timed, and any exception that the function raises.
    """
    one = subject(function, inputs, make, keywords, name)
    with stopwatch(one.device, settings_of("hot" if cache == "hot" else "cold", seconds), context) as watch:
        found = timed(watch, one, reference, tolerance, backward)
        if cache == "both":
            watch.settings = settings_of("hot", seconds)
            found = replace(found, hot=timed(watch, one, None, tolerance, backward))
    return with_rates(found, one, bytes, flops, ceilings)


def settings_of(cache: Literal["cold", "hot"], seconds: float) -> TimingSettings:
    """Return the timing settings of ``bench``."""
    return TimingSettings(cache=cache, max_seconds=seconds)


def timed(
    watch: Stopwatch,
    one: Subject,
    reference: Callable[..., Any] | None,
    tolerance: Tolerances,
    backward: bool = False,
) -> BenchResult:
    """Time a function once by a stopwatch, and verify its outputs."""
    if not backward:
        return _timed(watch, one, one.arguments.call(one.function), reference, tolerance)
    if torch.is_inference_mode_enabled():
        raise BenchError("backward=True needs gradients, and torch.inference_mode() records none: leave it.")
    forward = _timed(watch, one, _with_gradient(one), reference, tolerance)
    both = _timed(watch, *_both_passes(one), None, tolerance)
    return replace(
        both,
        forward=forward,
        backward_us=both.median_us - forward.median_us,
        valid=both.valid and forward.valid,
        why=both.why or forward.why,
    )


def _with_gradient(one: Subject) -> Callable[..., Any]:
    """Return the forward pass with gradients recorded, as in training."""
    call = one.arguments.call(one.function)

    def forward(*tensors: torch.Tensor) -> Tensors:
        with torch.enable_grad():
            outputs = tensors_of(call(*(_leaf(x) for x in tensors)))
        return tuple(x.detach() for x in outputs)

    return forward


def _both_passes(one: Subject) -> tuple[Subject, Callable[..., Any]]:
    """Return a subject and a call for the forward and backward pass. The call returns the gradients of the
    inputs and of a module's parameters. The outputs' gradients (ones) are further inputs, so that creating
    them is not timed."""
    call = one.arguments.call(one.function)
    weights = (
        [p for p in one.function.parameters() if p.requires_grad] if isinstance(one.function, Module) else []
    )

    def forward(tensors: Tensors) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        leaves = [_leaf(x) for x in tensors]
        return [x for x in tensors_of(call(*leaves)) if x.requires_grad], leaves

    count = len(one.arguments.tensors)
    with torch.enable_grad(), on_device(one.device):
        ones = tuple(torch.ones_like(x) for x in forward(copied(one.arguments.tensors))[0])
    if not ones:
        raise BenchError("backward=True, but no output of the function requires a gradient.")

    def both(*tensors: torch.Tensor) -> Tensors:
        with torch.enable_grad():
            outputs, leaves = forward(tensors[:count])
            wanted = [*(x for x in leaves if x.requires_grad), *weights]
            gradients = torch.autograd.grad(outputs, wanted, tensors[count:], allow_unused=True)
        return tuple(x for x in gradients if x is not None)

    given = replace(one.arguments, tensors=(*one.arguments.tensors, *ones))
    return replace(one, arguments=given, another=lambda number: (*one.another(number), *ones)), both


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_(x.is_floating_point() or x.is_complex())


def _timed(
    watch: Stopwatch,
    one: Subject,
    call: Callable[..., Any],
    reference: Callable[..., Any] | None,
    tolerance: Tolerances,
) -> BenchResult:
    with on_device(one.device):
        first = FirstCalls.of(call, one.arguments.tensors)
    notes = (
        ["the ring holds copies of the inputs given"] if one.copies and watch.settings.cache == "cold" else []
    )
    if first.in_place:
        notes.append("the function writes over its inputs, which change from call to call")
    if first.random:
        notes.append(
            "two calls on the same inputs gave different outputs: those of timed calls are not checked"
        )
    own = copied(one.arguments.tensors)
    samples, state = _sampled(watch, one, first, own)
    if samples.timer == "event":
        notes.append(f"timed by events, since {_why_events(first, one, watch)}")
    if watch.settings.cache == "cold" and watch.cache(samples) == "hot":
        notes.append("all sets of inputs together fit into the cache: it is partly hot")
    with _restored(first.kept):
        error = _error(first, samples, one.arguments.tensors, reference, one, tolerance)
    if error:
        state = state.distrusted(error)
    ordered = sorted(samples.samples_us)
    low, high = median_interval(ordered)
    late = 0.0
    if samples.canary is not None:
        late = watch.gap.excess_us(samples.canary) if watch.gap.known else UNKNOWN_MODE_US
    if late:
        notes.append(f"the mode of the launch gap is not known: a launch may take up to {late:.2g} us less")
    return BenchResult(
        name=one.name,
        device=torch.cuda.get_device_name(one.device) if one.device.type == "cuda" else "cpu",
        median_us=quantile(ordered, 0.5),
        interval=(max(0.0, low - late), high),
        samples_us=samples.samples_us,
        timer=samples.timer,
        cache=watch.cache(samples),
        valid=state.valid,
        why=state.invalid_reason or "",
        host_us=_host_us(first.call, own) if one.device.type == "cuda" else None,
        notes=tuple(notes),
        state=state,
    )


def _sampled(watch: Stopwatch, one: Subject, first: FirstCalls, own: Tensors) -> tuple[Samples, State]:
    """Return samples and the device's state. On a CPU sample again, up to ``TRIES`` times, if other processes
    used its cores."""
    for _ in range(TRIES):
        before = load.threads_of(os.getpid())
        samples, state = watch.time(first.call, own, first.bytes, first.in_place, one.another)
        had = load.scheduled(before, load.threads_of(os.getpid()))
        if one.device.type != "cpu" or had.delay <= known_ceilings.BUSY:
            return samples, state
    return samples, state.distrusted(f"other processes had the cores for {had.delay:.0%} of the time")


@dataclass(frozen=True)
class FirstCalls:
    """The facts that the first calls of a function show.

    ``call`` returns the outputs as tensors. ``in_place`` says that the function overwrites its inputs with
    the outputs; ``random``, that a second call on the same inputs returns other outputs. ``kept`` are outputs
    in memory that the function reuses from call to call. ``bytes`` counts inputs and outputs.
    """

    call: Callable[..., Any]
    outputs: Tensors
    in_place: bool
    random: bool
    kept: Tensors
    bytes: int

    @classmethod
    def of(cls, call: Callable[..., Any], tensors: Tensors) -> FirstCalls:
        """Call the function on copies of the inputs. Raises BenchError if it has no visible effect, or
        returns an input or a view of one."""
        given = copied(tensors)
        returned = call(*given)
        changed = [i for i, (x, old) in enumerate(zip(given, tensors, strict=True)) if not equal(x, old)]
        bytes_ = sum(x.nbytes for x in tensors)
        if changed:
            written = copied(given)
            call(*given)
            if not all(map(equal, given, written)):
                return cls(call, written, True, False, (), bytes_)
            # The second call writes the same values: the changed inputs are output buffers.
            return cls._returning(_giving(call, changed), tensors, bytes_)
        outputs = tensors_of(returned)
        if not outputs:
            raise BenchError(
                "the function returned no tensor and changed none of its inputs: nothing shows that it ran. "
                "Let it return its output, or pass the output's tensor as an input."
            )
        places = {x.untyped_storage().data_ptr() for x in given if x.numel()}
        if any(x.untyped_storage().data_ptr() in places for x in outputs if x.numel()):
            raise BenchError(
                "the function returns an input or a view of one, which takes no work: let it return a tensor "
                "of its own."
            )
        if not returns_tensors(returned) or any(x.requires_grad for x in outputs):
            call = _detached(call)
        return cls._returning(call, tensors, bytes_ + sum(x.nbytes for x in outputs))

    @classmethod
    def _returning(cls, call: Callable[..., Any], tensors: Tensors, bytes_: int) -> FirstCalls:
        """Call twice. The function is random if the outputs differ; outputs at the same address are in memory
        that the function keeps."""
        inputs = copied(tensors), copied(tensors)
        first = as_tuple(call(*inputs[0]))
        outputs = copied(tuple(x.detach() for x in first))
        second = as_tuple(call(*inputs[1]))
        kept = tuple(
            x for x, y in zip(second, first, strict=False) if x.data_ptr() == y.data_ptr() and x.numel()
        )
        random = compared(second, _as_reference(outputs), None).error is not None
        return cls(call, outputs, False, random, kept, bytes_)


def _giving(call: Callable[..., Any], places: Sequence[int]) -> Callable[..., Tensors]:
    """Wrap a function that writes into inputs so that it returns these inputs."""

    def giving(*tensors: torch.Tensor) -> Tensors:
        call(*tensors)
        return tuple(tensors[place] for place in places)

    return giving


def _detached(call: Callable[..., Any]) -> Callable[..., Tensors]:
    """Wrap a function so that it returns only tensors, detached from autograd's graph."""

    def detached(*tensors: torch.Tensor) -> Tensors:
        return tuple(x.detach() for x in tensors_of(call(*tensors)))

    return detached


def _as_reference(outputs: Tensors) -> Tensors:
    return tuple(x.double() if x.is_floating_point() else x for x in outputs)


@contextmanager
def _restored(tensors: Tensors) -> Iterator[None]:
    """Restore the tensors' values at the end."""
    copies = copied(tensors)
    try:
        yield
    finally:
        with torch.inference_mode():
            for x, old in zip(tensors, copies, strict=True):
                x.copy_(old)


def _error(
    first: FirstCalls,
    samples: Samples,
    tensors: Tensors,
    reference: Callable[..., Any] | None,
    one: Subject,
    tolerance: Tolerances,
) -> str | None:
    """Return what is wrong with the outputs of the timed calls, or None. Raises BenchError if the timed calls
    wrote nothing."""
    if first.in_place:
        with torch.inference_mode():
            for x, old in zip(samples.rotation.inputs[0], tensors, strict=True):
                spanned(x).copy_(spanned(old))
    outputs = tuple(x.detach() for x in samples.again(0))
    if not first.in_place and samples.timer == "graph" and _untouched(outputs, first.outputs):
        raise BenchError(
            f"{one.name} is captured as an empty graph, whose replays write nothing: the function launches "
            "on another stream, or returns a cached output. Let it launch on torch.cuda.current_stream()."
        )
    if reference is not None:
        verdict = compared(outputs, expect(reference, one.arguments), tolerance)
        return verdict.error and f"the output is wrong: {verdict.error}"
    if first.random:
        return None
    verdict = compared(outputs, _as_reference(first.outputs), tolerance)
    return verdict.error and f"the timed calls wrote another output than one call does: {verdict.error}"


def _untouched(outputs: Tensors, right: Tensors) -> bool:
    """Whether the outputs still hold the values that ``spoil`` wrote."""
    spoilt = copied(right)
    spoil(spoilt)
    return any(x.numel() for x in outputs) and verification.unchanged(outputs, spoilt)


def _why_events(first: FirstCalls, one: Subject, watch: Stopwatch) -> str:
    try:
        capture(Rotation(first.call, (copied(one.arguments.tensors),), first.in_place), 1)
    except NotCapturableError as error:
        return f"the function can't be captured into a CUDA graph: {str(error).splitlines()[0]}"
    return f"a cold ring of inputs so small would need more than {MOST_SETS} sets"


def _host_us(call: Callable[..., Any], tensors: Tensors) -> float:
    """Return the median microseconds until a call returns to the host."""
    times = []
    torch.cuda.synchronize()
    for _ in range(HOST_CALLS):
        begin = perf_counter()
        call(*tensors)
        times.append((perf_counter() - begin) * 1e6)
    torch.cuda.synchronize()
    return median(times)


def with_rates(
    found: BenchResult,
    one: Subject,
    bytes_: int | None,
    flops: int | Mapping[str, int] | None,
    ceilings: Rates | bool,
) -> BenchResult:
    """Return the result with its rates and their share of the device's ceilings."""
    if bytes_ is None and flops is None:
        return found
    by_arithmetic = flops if isinstance(flops, Mapping) else {_arithmetic(one): flops} if flops else {}
    operations = sum(by_arithmetic.values())
    rates = known_ceilings.of_device(one.device) if ceilings is True else ceilings or None
    least_us = []
    if rates is not None and all(name in rates.matmul_tflops for name in by_arithmetic):
        known = rates.matmul_tflops
        least_us = [bytes_ / rates.copy_gbps / 1e3] if bytes_ else []
        least_us.append(sum(count / known[name] / 1e6 for name, count in by_arithmetic.items()))
    return replace(
        found,
        gbps=bytes_ / found.median_us / 1e3 if bytes_ else None,
        tflops=operations / found.median_us / 1e6 if operations else None,
        of_ceiling=max(least_us) / found.median_us if least_us else None,
    )


def _arithmetic(one: Subject) -> str:
    """Return the arithmetic to assume if ``flops`` is only a number."""
    dtypes = [x.dtype for x in one.arguments.tensors if x.is_floating_point()]
    name = str(dtypes[0] if dtypes else torch.float32).removeprefix("torch.")
    tf32 = name == "float32" and one.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if tf32 else name
