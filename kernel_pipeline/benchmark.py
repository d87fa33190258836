"""``bench``: time any function of tensors in the caller's process.

On a GPU ``bench`` replays CUDA graphs that go round a ring of inputs, in the fast mode of the launch gap (see
``timing.launch_gap``). The time of a call is the replay time divided by the calls in it. The outputs of the
timed replays are verified afterwards. A function that can't be captured into a graph is timed by CUDA events,
and a function on the CPU by the host's clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import pynvml
import torch
from torch.nn import Module

from . import known_ceilings
from .arguments import BenchError, Make, copied, on_device, tensors_of, uuid_of
from .bench_options import check_functions, check_names, check_seconds, check_tolerance
from .bench_result import BenchResult
from .checking import Tolerances, compared, expect
from .first_calls import FirstCalls, as_reference, restored, untouched
from .loading import Tensors
from .machine import load
from .records.ceilings import Rates
from .records.measurement import State
from .records.settings import TimingSettings
from .statistics.quantiles import median_interval, quantile
from .subject import Subject, subject
from .timing.call_readings import host_us
from .timing.launch_gap import SecondContext
from .timing.stopwatch import Stopwatch, spanned
from .timing.timers import Rotation, Samples
from .timing.timers.capture import NotCapturableError, capture

UNKNOWN_MODE_US = 0.4
"""Microseconds that the slow mode of the launch gap may add to a launch: an H100 showed 0.12 to 0.36."""

TRIES = 3
"""The maximum number of attempts to sample on a CPU whose cores other processes use."""


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


def _second_context(device: torch.device) -> SecondContext:
    try:
        return SecondContext(device)
    except (RuntimeError, OSError) as error:
        raise BenchError(
            f"no second CUDA context could be made to set the mode of the launch gap ({error}): free half a "
            "gigabyte of device memory, or write context=False, which widens the interval."
        ) from error


def bench(  # noqa: PLR0913
    function: Callable[..., Any] | str,
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
    isolate: bool = False,
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
        a reference the outputs of the timed calls are compared with an untimed call's. A wrong output makes
        the result invalid.
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
    isolate:
        Time the function in a process of its own and verify it in another, as a sweep does, for code that you
        don't trust. Needs ``make`` and ``reference``. The function, which may be ``"file.py:name"``, has to
        be in a file of its own, which the verifying process does not import.

    >>> bench(torch.square, torch.randn(256, 256)).valid
    True

    Raises BenchError if the function can't be timed or an option has a wrong value, and any exception that
    the function raises.
    """
    if cache not in ("cold", "hot", "both"):
        raise BenchError(f"cache={cache!r} is unknown: write 'cold', 'hot' or 'both'.")
    check_functions(make=make, reference=reference)
    check_tolerance(tolerance)
    check_names([] if name is None else [name])
    settings = settings_of("hot" if cache == "hot" else "cold", seconds)
    if isolate:
        from .isolated import bench_isolated

        if inputs or keywords or backward or cache == "both" or not context:
            raise BenchError(
                "isolate=True can't be combined with inputs, keywords, backward, cache='both' or context: "
                "leave these out."
            )
        isolated, one = bench_isolated(function, make, reference, tolerance, settings, name)
        return with_rates(isolated, one, bytes, flops, ceilings)
    if isinstance(function, str):
        raise BenchError(f"{function} is a string: pass the function, or write isolate=True.")
    one = subject(function, inputs, make, keywords, name)
    with stopwatch(one.device, settings, context) as watch:
        found = timed(watch, one, reference, tolerance, backward)
        if cache == "both":
            watch.settings = settings_of("hot", seconds)
            found = replace(found, hot=timed(watch, one, None, tolerance, backward))
    return with_rates(found, one, bytes, flops, ceilings)


def settings_of(cache: Literal["cold", "hot"], seconds: float) -> TimingSettings:
    """Return the timing settings of ``bench``. Raises BenchError for a value that can't be used."""
    check_seconds(seconds)
    if cache not in ("cold", "hot"):
        raise BenchError(f"cache={cache!r} is unknown: write 'cold' or 'hot'.")
    return TimingSettings(cache=cache, max_seconds=float(seconds))


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
        raise BenchError(
            "backward=True needs gradients, and torch.inference_mode() records none: call bench outside of "
            "this mode."
        )
    forward = _timed(watch, one, _with_gradient(one), reference, tolerance)
    both = _timed(watch, *_both_passes(one), None, tolerance)
    backward_us = both.median_us - forward.median_us
    noise = "" if backward_us > 0 else "both passes took no longer than the forward pass: measure again"
    return replace(
        both,
        forward=forward,
        backward_us=backward_us,
        valid=both.valid and forward.valid and not noise,
        why=both.why or forward.why or noise,
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
        raise BenchError("backward=True needs gradients, and no output of the function requires a gradient.")

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
        first = FirstCalls.made(call, one.arguments.tensors)
    notes = (
        ["the ring holds copies of the inputs given"] if one.copies and watch.settings.cache == "cold" else []
    )
    if first.in_place:
        notes.append("the function writes over its inputs, which change from call to call")
    if first.random:
        notes.append(
            "two calls on the same inputs gave different outputs: outputs of timed calls are not checked"
        )
    own = copied(one.arguments.tensors)
    samples, state = _sampled(watch, one, first, own)
    if samples.timer == "event":
        notes.append(f"timed by events, since {_why_events(first, one)}")
    if watch.settings.cache == "cold" and watch.cache(samples) == "hot":
        notes.append("all sets of inputs together fit into the cache, so the cache is partly hot")
    with restored(first.kept):
        error = _error(first, samples, one.arguments.tensors, reference, one, tolerance)
    if error:  # said before a throttled or busy device
        state = state.replace(valid=False, invalid_reason=error)
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
        host_us=host_us(first.call, own) if one.device.type == "cuda" else None,
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


def _error(
    first: FirstCalls,
    samples: Samples,
    tensors: Tensors,
    reference: Callable[..., Any] | None,
    one: Subject,
    tolerance: Tolerances,
) -> str | None:
    """Return a sentence about an error in the outputs of the timed calls, or None. Raises BenchError if the
    timed calls wrote nothing.
    """
    if first.in_place:
        with torch.inference_mode():
            for x, old in zip(samples.rotation.inputs[0], tensors, strict=True):
                spanned(x).copy_(spanned(old))
    elif first.kept:
        # After a turn of the ring this memory holds the output of the last set, so all sets get equal values.
        with torch.inference_mode():
            for others in samples.rotation.inputs[1:]:
                for x, old in zip(others, samples.rotation.inputs[0], strict=True):
                    spanned(x).copy_(spanned(old))
    outputs = tuple(x.detach() for x in samples.again(0))
    if first.in_place:
        outputs = tuple(outputs[place] for place in first.changed)
    elif samples.timer == "graph" and untouched(outputs, first.outputs):
        raise BenchError(
            f"{one.name} is captured as an empty graph, whose replays write nothing: the function launches "
            "on another stream, or returns a cached output. Launch on torch.cuda.current_stream()."
        )
    if reference is not None:
        verdict = compared(outputs, expect(reference, one.arguments), tolerance)
        return verdict.error and f"the output is wrong: {verdict.error}"
    if first.random:
        return None
    verdict = compared(outputs, as_reference(first.outputs), tolerance)
    return verdict.error and f"the timed calls wrote another output than one call does: {verdict.error}"


def _why_events(first: FirstCalls, one: Subject) -> str:
    try:
        capture(Rotation(first.call, (copied(one.arguments.tensors),), first.in_place), 1)
    except NotCapturableError as error:
        return f"the function can't be captured into a CUDA graph: {str(error).splitlines()[0]}"
    return "many calls can't be captured into a CUDA graph, though one can"


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
