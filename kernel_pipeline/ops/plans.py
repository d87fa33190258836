"""Plans of calls: the entry that runs a call, chosen once for each form of the arguments.

Providers run on the current CUDA device and stream. A result has its provider's layout.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..contract import Gpu, Provider
from ..loading import Loaded
from ..machine.device import Device
from . import asked, native, relaunch, switch, table_files, tuned
from .choice import Choice
from .declaration import NotServedError, Op, Result
from .known import Known
from .tuned_problems import takes_inputs

MOST_PLANS = 1 << 14
"""The maximum number of plans that an op keeps; beyond that all are dropped and made again."""


SWITCHING = frozenset({"torch", "cuda"})
"""Languages whose entries make the tensors' GPU the current device themselves."""

RECORDED = frozenset({"triton", "gluon"})
"""Languages whose launches can be repeated without the entry's own code."""


class CallPlan:
    """The plan of the calls of one form.

    ``run(*args[:takes])`` returns the result; it takes all arguments if ``takes`` is None. ``asked`` counts
    the calls. ``known`` is the kind of call that was recognised last.
    """

    __slots__ = ("asked", "choice", "known", "run", "takes")

    def __init__(
        self, run: Callable[..., Result], choice: Choice, counted: asked.Asked, takes: int | None = None
    ) -> None:
        self.run = run
        self.takes = takes
        self.choice = choice
        self.asked = counted
        self.known: Known | None = None


def form_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the part of the arguments that a plan depends on: shape, strides, dtype and device of each
    tensor, and the values of other arguments."""
    form: list[Any] = []
    for one in args:
        if isinstance(one, torch.Tensor):
            form += (one.shape, one.is_contiguous() or one.stride(), one.dtype, one.device)
        else:
            form.append(one)
    return tuple(form)


def first(op: Op, loaded: Loaded, args: tuple[Any, ...], by_torch: bool) -> tuple[CallPlan, Result]:
    """Make the plan for calls of this form, and return it with the result of the first call. If the chosen
    provider is missing or refuses the tensors, warn once and use torch. ``by_torch`` says whether the switch
    lets torch compute every call; such calls are not counted.
    """
    if by_torch:
        choice = Choice("torch", {}, "torch", switch.reason() or "")
        return CallPlan(op.definition, choice, asked.Asked(loaded.name, None, choice)), op.definition(*args)
    problem, choice = _chosen(op, loaded, args)
    if problem is not None:
        of = device_of(args)
        try:
            entry = ready(loaded, problem, choice, of)
            provider = loaded.kernel.provider(choice.provider)
            bound = _on(of, _bound(loaded, problem, choice, entry), provider)
            if of.type == "cuda" and provider.language in RECORDED:
                run, takes, out = _repeated(op, bound, args, of)
                run = _on(of, run, provider)
            else:
                run, takes, out = _fitted(op, bound, args)
            return CallPlan(run, choice, asked.counter(loaded.name, problem, choice), takes), out
        except (native.NotThereError, ValueError) as refusal:
            # A default configuration that does not fit a problem needs no warning.
            if choice.how not in ("default", "torch"):
                why = f"{loaded.name}: {choice.provider} can't be used, so torch is called: {refusal}"
                table_files.warn(why, UserWarning, stacklevel=5)
            choice = Choice(loaded.kernel.baseline, {}, "torch", str(refusal))
    return CallPlan(op.definition, choice, asked.counter(loaded.name, problem, choice)), op.definition(*args)


def _chosen(op: Op, loaded: Loaded, args: tuple[Any, ...]) -> tuple[Any, Choice]:
    """Return the problem of a call and the choice for it; no problem for a call that only torch computes."""
    problem, choice = problem_of(op, args)
    if choice is None:
        of = device_of(args)
        choice = tuned.choose(loaded, problem, gpu_of(of), slug_of(of))
    return problem, choice


def problem_of(op: Op, args: tuple[Any, ...]) -> tuple[Any, Choice | None]:
    """Return the problem of a call; for a call that only torch computes, return None and the choice."""
    if op.problem is None:
        return None, Choice("torch", {}, "torch", f"{op.name} is computed by torch alone.")
    try:
        return op.problem(*args), None
    except NotServedError as reason:
        return None, Choice("torch", {}, "torch", str(reason))


def device_of(args: tuple[Any, ...]) -> torch.device:
    """Return the device of a call's first tensor."""
    return next(one.device for one in args if isinstance(one, torch.Tensor))


@functools.cache
def gpu_of(device: torch.device) -> Gpu | None:
    """Return the properties of a GPU on which a choice depends; None for a CPU."""
    if device.type != "cuda":
        return None
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks a field
    return Gpu(
        capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        shared_memory=properties.shared_memory_per_block_optin,
        l2_cache=properties.L2_cache_size,
    )


@functools.cache
def slug_of(device: torch.device) -> str | None:
    """Return a GPU's name in file names, such as ``nvidia-h200``; None for a CPU, which has no table."""
    if device.type != "cuda":
        return None
    return Device(kind="cuda", name=torch.cuda.get_device_name(device)).slug


def ready(loaded: Loaded, problem: Any, choice: Choice, of: torch.device) -> Callable[..., Any]:
    """Return a provider's entry, building and loading its library if it has one. Raises NotThereError, with a
    sentence, if the provider can't compute the problem in this configuration on this device."""
    if reason := refusal(loaded, problem, choice, of, gpu_of(of)):
        raise native.NotThereError(reason)
    provider = loaded.kernel.provider(choice.provider)
    if provider.extension is not None:
        native.load(loaded, provider.extension)
    try:
        entry = loaded.entry(provider)
    except ImportError as error:
        raise native.NotThereError(f"{error}.") from error
    # A packet resolves the overload at every call; there is only one overload.
    return entry.default if isinstance(entry, torch._ops.OpOverloadPacket) else entry


def refusal(loaded: Loaded, problem: Any, choice: Choice, of: torch.device, gpu: Gpu | None) -> str | None:
    """Return the reason, as a sentence, why a provider can't compute a problem in this configuration on this
    device, or None. Nothing is built or imported."""
    try:
        provider = loaded.kernel.provider(choice.provider)
    except KeyError:
        return "there is no such provider."
    if reason := _missing(provider, of, gpu):
        return reason
    parameters = provider.parameters(**choice.parameters) if provider.parameters else None
    reason = provider.fits(problem, parameters, gpu)
    return f"{reason}." if reason else None


def _missing(provider: Provider, of: torch.device, gpu: Gpu | None) -> str | None:
    """Return the reason why a provider can't be called on a device, as a sentence, or None."""
    if not takes_inputs(provider):
        return "it takes its inputs in another form."
    if not provider.is_installed:
        return f'it is not installed: pip install "{provider.requires}".'
    interpreted = provider.interpreted and os.environ.get("TRITON_INTERPRET") == "1"
    if of.type not in provider.devices and not (of.type == "cpu" and interpreted):
        return f"it does not run on {of.type}."
    if gpu is not None and (reason := provider.runs_on(gpu)):
        return f"it {reason}."
    return None


def _bound(loaded: Loaded, problem: Any, choice: Choice, entry: Callable[..., Any]) -> Callable[..., Any]:
    """Return the entry with its named arguments and parameters bound."""
    named = {**loaded.arguments(problem), **choice.parameters}
    return functools.partial(entry, **named) if named else entry


def _fitted(
    op: Op, entry: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Result], int | None, Result]:
    """Call an entry, and wrap it as a function of the op's arguments. Return the function, the number of
    arguments that it takes (None for all), and the result of the call.

    The form fixes shapes and strides. If the op only views tensors in other shapes, later calls create these
    views directly, without calling ``inputs`` and ``result`` of the op.
    """
    given = op.inputs(*args)
    made = entry(*given)
    out = op.result(made, *args)
    count = len(given)
    views = [_viewed(one, arg) for one, arg in zip(given, args, strict=False)]
    back = _viewed(out, made)
    if count > len(args) or None in views or back is None:
        inputs, result = op.inputs, op.result
        return lambda *args: result(entry(*inputs(*args)), *args), None, out
    if not any(views) and not back:
        return entry, count, out
    if not any(views[1:]) and views[0] and back:
        shape = views[0]
        return lambda x, *others: entry(x.view(shape), *others).view(back), count, out
    return _through_views(entry, views, back), count, out


def _repeated(
    op: Op, entry: Callable[..., Any], args: tuple[Any, ...], of: torch.device
) -> tuple[Callable[..., Result], int | None, Result]:
    """Return what ``_fitted`` returns, with a function that repeats the launches of this call, if it can."""
    with relaunch.recorded() as record:
        run, takes, out = _fitted(op, entry, args)
    count = sum(isinstance(one, torch.Tensor) for one in args)
    tensors, rest = args[:count], args[count:]
    if not all(isinstance(one, torch.Tensor) for one in tensors):
        return run, takes, out
    stream = functools.partial(torch._C._cuda_getCurrentRawStream, of.index)
    repeat = relaunch.repeated(record, tensors, out, lambda *others: run(*(*others, *rest)[:takes]), stream)
    return (run, takes, out) if repeat is None else (repeat, count, out)


def _viewed(one: Any, of: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor that is a contiguous view of another whole tensor. Return an empty shape
    if both are the same object, and None if the tensor is not such a view."""
    if one is of:
        return ()
    if not isinstance(one, torch.Tensor) or not isinstance(of, torch.Tensor):
        return None
    whole = one.is_contiguous() and of.is_contiguous() and one.numel() == of.numel()
    return tuple(one.shape) if whole and one.dim() and one.data_ptr() == of.data_ptr() else None


def _through_views(
    entry: Callable[..., Any], views: Sequence[tuple[int, ...] | None], back: tuple[int, ...]
) -> Callable[..., Result]:
    """Wrap an entry so that its arguments and its output are viewed in the given shapes."""

    def run(*args: Any) -> Result:
        given = [one.view(*shape) if shape else one for one, shape in zip(args, views, strict=False)]
        made = entry(*given)
        return made.view(*back) if back else made

    return run


def _on(of: torch.device, entry: Callable[..., Any], provider: Provider) -> Callable[..., Any]:
    """Wrap an entry so that the tensors' GPU is the current device, if there are several GPUs. torch's
    functions and CUDA operators switch the device themselves; Triton, Numba and peers may not."""
    switches = provider.package is None and provider.language in SWITCHING
    if of.type != "cuda" or switches or torch.cuda.device_count() <= 1:
        return entry
    index = of.index
    current = torch._C._cuda_getDevice  # torch.cuda.current_device also checks initialisation

    def there(*args: Any) -> Any:
        if current() == index:
            return entry(*args)
        with torch.cuda.device(index):
            return entry(*args)

    return there
