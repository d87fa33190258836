"""``bench``: the time of any function on tensors, in the caller's process.

On a GPU the time is a launch's share of CUDA-graph replays that go round a ring of inputs, in the fast mode
of the launch gap (see ``timing.launch_gap``); what the timed replays wrote is compared afterwards. A function
that can't be captured is timed by events, and one on the CPU by the host's clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, Literal

import torch

from . import known_ceilings, verification
from .arguments import Arguments, BenchError, Make, arguments, copied, made, returns_tensors, tensors_of
from .checking import Tolerances, compared, expect
from .loading import Tensors
from .machine import load
from .records.ceilings import Rates
from .records.measurement import State
from .records.settings import TimingSettings
from .statistics.quantiles import median_interval, quantile
from .timing.launch_gap import SecondContext
from .timing.stopwatch import MOST_SETS, Another, Stopwatch
from .timing.timers import Rotation, Samples, spoil
from .timing.timers.capture import NotCapturableError, capture

RING_SEED = 1 << 20
"""The first seed of the sets after the first."""

HOST_CALLS = 30
"""Calls by which the host's time is found; so few that the GPU's queue never fills."""

BUSY = 0.05
"""Above this run-queue delay others had the cores, and a CPU's time says nothing."""


TRIES = 3
"""How often a CPU's samples are taken while others have the cores."""


@dataclass(frozen=True)
class BenchResult:
    """The time of a function, in microseconds a call.

    median_us, interval:
        The median of the samples, and its 95 % confidence interval.
    valid, why:
        Whether the time can be trusted, and if not, why: a wrong output, a throttled GPU, busy cores.
    timer, cache:
        How it was timed: ``graph``, ``event`` or ``perf_counter``; over a ``cold`` cache or a ``hot`` one.
    host_us:
        What a call costs the host until it returns; None on a CPU, where that is the time.
    gbps, tflops, of_ceiling:
        Rates by the bytes and operations that were given, and the share of what this device was measured to
        do at best.
    notes:
        What else a reader should know of how it was timed.
    hot, forward, both, backward_us:
        With ``cache="both"`` the time over a hot cache. With ``backward=True`` this result is that of both
        passes, ``forward`` that of the first alone, and ``backward_us`` the difference.
    """

    name: str
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
        """A notebook's small table."""
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
    """A function with what it is timed on."""

    name: str
    function: Callable[..., Any]
    arguments: Arguments
    another: Another
    copies: bool

    @property
    def device(self) -> torch.device:
        """Where its inputs are."""
        return self.arguments.tensors[0].device


def subject(
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    make: Make | None,
    keywords: Mapping[str, Any] | None,
    name: str | None,
) -> Subject:
    """A function with its inputs, or those that ``make`` makes. Raises BenchError for both or neither."""
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
            raise BenchError("make= gives tensors of other shapes, strides or dtypes for another seed.")
        return more

    return Subject(title, function, first, another, copies=False)


@contextmanager
def stopwatch(device: torch.device, settings: TimingSettings, context: bool) -> Iterator[Stopwatch]:
    """A stopwatch for a device of this process. With ``context`` a second CUDA context sets the mode of the
    launch gap, and is gone afterwards."""
    if device.type != "cuda":
        yield Stopwatch(device, settings, lambda: None)
        return
    with torch.cuda.device(device):
        second = _second_context(device) if context else None
        try:
            watch = Stopwatch(device, settings, second.set_mode if second else lambda: None, uuid_of(device))
            watch.know(watch.calibrated() if second else None)
            yield watch
            watch.release()
        finally:
            if second:
                second.close()


def uuid_of(device: torch.device) -> str:
    """The UUID of a GPU, as NVML names it."""
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
    """Time a function of tensors: one of torch, Triton, a CUDA extension, a compiled module, any callable.

    inputs, keywords, make:
        The arguments of a call, or ``make(seed)``, which makes them: a tuple, or one tensor. The sets that
        the timed calls go round have seeds of their own; without ``make`` they are copies of the inputs.
        Together they exceed the last-level cache three times, so that each call finds a cold cache.
    reference, tolerance:
        The right answer, called with the inputs in float64, and the ``(rtol, atol)`` allowed. Without it what
        the timed calls wrote is compared with one more call. A wrong output makes the time invalid.
    bytes, flops:
        Bytes that a call moves at least, and its operations (by arithmetic: ``{"bfloat16": n}``), for rates
        and the share of the device's ceiling.
    cache:
        ``cold``, ``hot`` (one set of inputs), or ``both``.
    backward:
        Time forward and backward pass together; the result's ``forward`` is the first alone.
    context:
        Make a second CUDA context meanwhile, which sets the mode of the launch gap: 0.2 s and half a gigabyte
        of device memory, given back at the end.
    ceilings:
        Those of this device; by default they are measured once and kept in the user's cache. False: none.
    seconds:
        How long to sample at most; sampling ends when the median is known to 0.5 %.

    >>> bench(torch.square, torch.randn(256, 256)).valid
    True

    Raises BenchError where the function can't be timed, and whatever it raises itself.
    """
    one = subject(function, inputs, make, keywords, name)
    with stopwatch(one.device, settings_of("hot" if cache == "hot" else "cold", seconds), context) as watch:
        found = timed(watch, one, reference, tolerance, backward)
        if cache == "both":
            watch.settings = settings_of("hot", seconds)
            found = replace(found, hot=timed(watch, one, None, tolerance, backward))
    if one.device.type == "cuda" and not context:
        note = "the mode of the launch gap is not known: a launch may take up to 0.4 us less"
        low, high = found.interval
        found = replace(found, interval=(max(0.0, low - 0.4), high), notes=(*found.notes, note))
    return with_rates(found, one, bytes, flops, ceilings)


def settings_of(cache: Literal["cold", "hot"], seconds: float) -> TimingSettings:
    """How ``bench`` samples."""
    return TimingSettings(cache=cache, max_seconds=seconds)


def timed(
    watch: Stopwatch,
    one: Subject,
    reference: Callable[..., Any] | None,
    tolerance: Tolerances,
    backward: bool = False,
) -> BenchResult:
    """Time a function once by a stopwatch, and compare what it wrote."""
    if not backward:
        return _timed(watch, one, one.arguments.call(one.function), reference, tolerance)
    forward = _timed(watch, one, _with_gradient(one), reference, tolerance)
    both = _timed(watch, one, _both_passes(one), None, tolerance)
    return replace(
        both,
        forward=forward,
        backward_us=both.median_us - forward.median_us,
        valid=both.valid and forward.valid,
        why=both.why or forward.why,
    )


def _with_gradient(one: Subject) -> Callable[..., Any]:
    """The forward pass as it is where a gradient is asked for."""
    call = one.arguments.call(one.function)

    def forward(*tensors: torch.Tensor) -> Tensors:
        with torch.enable_grad():
            outputs = tensors_of(call(*(_leaf(x) for x in tensors)))
        return tuple(x.detach() for x in outputs)

    return forward


def _both_passes(one: Subject) -> Callable[..., Any]:
    """Forward and backward pass; gives the inputs' gradients for an output's gradient of ones."""
    call = one.arguments.call(one.function)

    def both(*tensors: torch.Tensor) -> Tensors:
        with torch.enable_grad():
            leaves = [_leaf(x) for x in tensors]
            outputs = [x for x in tensors_of(call(*leaves)) if x.requires_grad]
            if not outputs:
                raise BenchError("backward=True, but no output of the function has a gradient.")
            wanted = [x for x in leaves if x.requires_grad]
            ones = [torch.ones_like(x) for x in outputs]
            gradients = torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
        return tuple(x for x in gradients if x is not None)

    return both


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_(x.is_floating_point() or x.is_complex())


def _timed(
    watch: Stopwatch,
    one: Subject,
    call: Callable[..., Any],
    reference: Callable[..., Any] | None,
    tolerance: Tolerances,
) -> BenchResult:
    first = Trial.of(call, one.arguments.tensors)
    notes = (
        ["the ring holds copies of the inputs given"] if one.copies and watch.settings.cache == "cold" else []
    )
    if first.in_place:
        notes.append("the function writes over its inputs, which change from call to call")
    own = copied(one.arguments.tensors)
    samples, state = _sampled(watch, one, first, own)
    if samples.timer == "event":
        notes.append(f"timed by events, since {_why_events(first, one, watch)}")
    if watch.settings.cache == "cold" and watch.cache(samples) == "hot":
        notes.append("the sets together do not exceed the cache: it is partly hot")
    error = _error(first, samples, one.arguments.tensors, reference, one, tolerance)
    if error:
        state = state.distrusted(error)
    ordered = sorted(samples.samples_us)
    low, high = median_interval(ordered)
    late = watch.gap.excess_us(samples.canary) if samples.canary else 0.0
    return BenchResult(
        name=one.name,
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


def _sampled(watch: Stopwatch, one: Subject, first: Trial, own: Tensors) -> tuple[Samples, State]:
    """Samples and the state of the device; on a CPU again while others had its cores."""
    for _ in range(TRIES):
        before = load.threads_of(os.getpid())
        samples, state = watch.time(first.call, own, first.bytes, first.in_place, one.another)
        had = load.scheduled(before, load.threads_of(os.getpid()))
        if one.device.type != "cpu" or had.delay <= BUSY:
            return samples, state
    return samples, state.distrusted(f"others had the cores for {had.delay:.0%} of the time")


@dataclass(frozen=True)
class Trial:
    """What a first call showed: the outputs, whether they are the inputs, whether another call gives others,
    and the bytes of inputs and outputs together."""

    call: Callable[..., Any]
    outputs: Tensors
    in_place: bool
    random: bool
    bytes: int

    @classmethod
    def of(cls, call: Callable[..., Any], tensors: Tensors) -> Trial:
        """Call twice on copies. Raises BenchError for a function of which nothing can be seen."""
        given = copied(tensors)
        with verification.poisoned_memory():
            returned = call(*given)
        in_place = not verification.unchanged(given, tensors)
        outputs = tensors_of(returned)
        if not in_place and not outputs:
            raise BenchError(
                "the function returned no tensor and changed none of its inputs: nothing shows that it ran. "
                "Let it return its output, or pass the output's tensor as an input."
            )
        plain = call
        if not in_place and not returns_tensors(returned):

            def plain(*inputs: torch.Tensor) -> Tensors:
                return tensors_of(call(*inputs))

        outputs = given if in_place else tuple(x.detach().clone() for x in outputs)
        again = copied(tensors)
        second = tensors_of(plain(*again))
        random = compared(again if in_place else second, _as_reference(outputs), None).error is not None
        bytes_ = sum(x.nbytes for x in tensors) + (0 if in_place else sum(x.nbytes for x in outputs))
        return cls(plain, outputs, in_place, random, bytes_)


def _as_reference(outputs: Tensors) -> Tensors:
    return tuple(x.double() if x.is_floating_point() else x for x in outputs)


def _error(
    first: Trial,
    samples: Samples,
    tensors: Tensors,
    reference: Callable[..., Any] | None,
    one: Subject,
    tolerance: Tolerances,
) -> str | None:
    """What is wrong with what the timed calls wrote, None if nothing is. Raises BenchError where they wrote
    nothing."""
    if first.in_place:
        with torch.no_grad():
            for x, old in zip(samples.rotation.inputs[0], tensors, strict=True):
                x.copy_(old)
    outputs = tuple(x.detach() for x in samples.again(0))
    if not first.in_place and samples.timer == "graph" and _untouched(outputs, first.outputs):
        raise BenchError(
            f"{one.name} is captured as an empty graph: it launches its kernels on a stream of its own. Let "
            "it launch on torch.cuda.current_stream()."
        )
    if reference is not None:
        verdict = compared(outputs, expect(reference, one.arguments), tolerance)
        return verdict.error and f"the output is wrong: {verdict.error}"
    if first.random:
        return None
    verdict = compared(outputs, _as_reference(first.outputs), tolerance)
    return verdict.error and f"the timed calls wrote another output than one call does: {verdict.error}"


def _untouched(outputs: Tensors, right: Tensors) -> bool:
    """Whether outputs hold what they were spoilt with."""
    spoilt = copied(right)
    spoil(spoilt)
    return bool(outputs) and verification.unchanged(outputs, spoilt)


def _why_events(first: Trial, one: Subject, watch: Stopwatch) -> str:
    try:
        capture(Rotation(first.call, (copied(one.arguments.tensors),), first.in_place), 1)
    except NotCapturableError as error:
        return f"it can't be captured into a CUDA graph: {str(error).splitlines()[0]}"
    return f"a cold ring of inputs so small would need more than {MOST_SETS} sets"


def _host_us(call: Callable[..., Any], tensors: Tensors) -> float:
    """Microseconds until a call returns."""
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
    """A result with its rates, and their share of the device's ceilings."""
    if bytes_ is None and flops is None:
        return found
    by_arithmetic = flops if isinstance(flops, Mapping) else {_arithmetic(one): flops} if flops else {}
    operations = sum(by_arithmetic.values())
    device = torch.cuda.device(one.device) if one.device.type == "cuda" else nullcontext()
    with device:
        rates = known_ceilings.of_device(one.device) if ceilings is True else ceilings or None
    least_us = []
    if rates is not None:
        least_us = [bytes_ / rates.copy_gbps / 1e3] if bytes_ else []
        known = rates.matmul_tflops
        if all(name in known for name in by_arithmetic):
            least_us.append(sum(count / known[name] / 1e6 for name, count in by_arithmetic.items()))
    return replace(
        found,
        gbps=bytes_ / found.median_us / 1e3 if bytes_ else None,
        tflops=operations / found.median_us / 1e6 if operations else None,
        of_ceiling=max(least_us) / found.median_us if least_us else None,
    )


def _arithmetic(one: Subject) -> str:
    """The arithmetic that operations are of where only their number is given."""
    dtypes = [x.dtype for x in one.arguments.tensors if x.is_floating_point()]
    name = str(dtypes[0] if dtypes else torch.float32).removeprefix("torch.")
    tf32 = name == "float32" and one.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if tf32 else name
