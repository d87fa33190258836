"""Explain what a call would get: the choice, the measurements that it rests on, and the alternatives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..contract import Gpu
from ..declared import Value, shown
from ..loading import Loaded
from . import function as function_of
from . import plans, prediction, rule, switch, table_files, tuned
from .choice import WORDS, Choice
from .chooser import Chooser
from .declaration import NotServedError
from .table import TunedProblem
from .tuned_problems import takes_inputs

if TYPE_CHECKING:
    from .calls import Function

FIGURES = 3
"""Significant digits of a predicted time."""


@dataclass(frozen=True)
class TimedChoice:
    """A configuration with its time in microseconds at the problem.

    us:
        None if it is unknown.
    interval_us, source, commit:
        For a measured time the interval, ``finals`` or ``sweep``, and the commit, as in the table. The source
        of a predicted time is ``prediction``. None where the table has none.
    is_prepared:
        Whether the provider takes the inputs in another form, which a caller could make once.
    """

    provider: str
    parameters: Mapping[str, Value]
    us: float | None
    interval_us: tuple[float, float] | None = None
    source: str | None = None
    commit: str | None = None
    is_prepared: bool = False

    def __str__(self) -> str:
        form = ", with inputs that the caller brings into another form once" if self.is_prepared else ""
        return self._time + form

    @property
    def _time(self) -> str:
        if self.us is None:
            return "unknown"
        if self.source == "prediction":
            return f"about {self.us:.{FIGURES}g} us"
        between = "" if self.interval_us is None else " ({:g} to {:g})".format(*self.interval_us)
        by = "" if self.source is None else f", {self.source}"
        return f"{self.us:g} us{between}{by}" + ("" if self.commit is None else f" at commit {self.commit}")


@dataclass(frozen=True)
class Near:
    """A tuned problem that the choice rests on: its distance in doublings, and how many times as long as the
    best there the chosen configuration takes; None if the table has no time of it there, since it takes more
    than ``rule.MOST`` times as long or was not measured."""

    problem: Mapping[str, Value]
    distance: float
    ratio: float | None

    def __str__(self) -> str:
        ratio = f"over {rule.MOST:g}" if self.ratio is None else f"{self.ratio:.3g}"
        return f"{_named(self.problem)}: {self.distance:.2f} doublings away, {ratio} x the best there"


@dataclass(frozen=True)
class Explanation:
    """What a call of a function would get. ``str`` gives a readable text.

    kernel, problem:
        The function and the dimensions of its problem, which are empty for a call that is no problem of the
        kernel.
    gpu:
        The GPU's slug; None if the tensors are on no GPU.
    choice:
        The provider, its configuration, and how and why it was chosen.
    table:
        The file of the table that was used, or None.
    time, baseline:
        The times of the choice and of torch's baseline; None without a table, and ``baseline`` if the choice
        is the baseline.
    runner_up:
        The fastest other provider, if any is known.
    near:
        The tuned problems that the rule used, the nearest first; none at a tuned problem.
    backward:
        The explanation of the gradient, if the call needs one that a kernel computes.
    """

    kernel: str
    problem: Mapping[str, Value]
    gpu: str | None
    choice: Choice
    table: Path | None = None
    time: TimedChoice | None = None
    baseline: TimedChoice | None = None
    runner_up: TimedChoice | None = None
    near: tuple[Near, ...] = ()
    backward: Explanation | None = None

    def __str__(self) -> str:
        choice = self.choice
        head = " ".join(filter(None, [self.kernel, _named(self.problem), self.gpu and f"on {self.gpu}"]))
        lines = {"called": _configured(choice.provider, choice.parameters)}
        if choice.how != "torch":
            lines["chosen by"] = f"{WORDS[choice.how]} ({choice.how})"
        lines["because"] = choice.reason
        if self.time is not None and self.time.us is not None:
            is_predicted = self.time.source == "prediction"
            lines["predicted" if is_predicted else "measured"] = str(self.time)
        if self.baseline is not None:
            lines["baseline"] = f"{self.baseline.provider}, {self.baseline}"
        if self.runner_up is not None:
            named = _configured(self.runner_up.provider, self.runner_up.parameters)
            lines["runner-up"] = f"{named}, {self.runner_up}"
        for number, one in enumerate(self.near):
            lines["rests on" if number == 0 else " " * number] = str(one)
        lines["table"] = str(self.table or "")
        texts = [f"  {name.strip():<9}  {text}" for name, text in lines.items() if text]
        return "\n".join([head, *texts, *([] if self.backward is None else [str(self.backward)])])


def explain(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slug: str | None
) -> Explanation:
    """Return the explanation of a call. ``slug`` names a GPU with a table, for which the choice is explained;
    None stands for the tensors' device. Raises TypeError and ValueError, with a sentence, for arguments that
    the function refuses and for an unknown GPU."""
    loaded = function.loaded
    reason = switch.reason()
    try:
        given = function.checked(args, kwargs)
    except NotServedError as error:
        given, reason = (*args, *kwargs.values()), str(error)
    device, named = plans.device_of(given), slug
    if slug is None:
        slug, gpu = plans.slug_of(device), plans.gpu_of(device)
    else:
        gpu, device = _gpu(slug), torch.device("cuda")
    training = function.op.training
    if training is not None and not reason and _trains(given):
        if function.trains(*given):
            return explain(function_of(training), given, {}, named)
        reason = f"{function.op.name} computes this gradient by torch."
    if reason:
        return Explanation(loaded.name, {}, slug, _torch(reason))
    problem, choice = plans.problem_of(function.op, given)
    if choice is not None:
        return Explanation(loaded.name, {}, slug, choice)
    found = _explained(loaded, problem, gpu, slug, device)
    kernel = _kernel_of_gradient(function, given)
    if kernel is None:
        return found
    backward = _explained(function_of(kernel).loaded, problem, gpu, slug, device)
    return dataclasses.replace(found, backward=backward)


def _kernel_of_gradient(function: Function, given: tuple[Any, ...]) -> str | None:
    """Return the kernel of a call's gradient; None if no gradient is needed or if no kernel computes it, for
    which a tensor is not saved that the kernel takes."""
    derivative = function.op.derivative
    if derivative is None or not _trains(given):
        return None
    values = dict(zip(function.signature.parameters, given, strict=True))
    is_kept = all(values[only].requires_grad for only in derivative.only_for.values())
    return derivative.kernel if is_kept else None


def _explained(
    loaded: Loaded, problem: Any, gpu: Gpu | None, slug: str | None, device: torch.device
) -> Explanation:
    """Return the explanation of a problem's choice."""
    values = dataclasses.asdict(problem)
    choice, made = tuned.chosen(loaded, problem, gpu, slug, warns=False)
    if why := plans.refusal(loaded, problem, choice, device, gpu):
        choice = Choice(loaded.kernel.baseline, {}, "torch", why)
    if made is None:
        return Explanation(loaded.name, values, slug, choice)
    if choice.how == "exact" and made.row is not None:
        return Explanation(loaded.name, values, slug, choice, made.file, *_measured(made, made.row))
    label = made.label_of(choice)
    measured = [one for one in made.comparable if label in one.tuned.near] if made.predicted else made.around
    near = tuple(_near(made, one, choice) for one in measured[: rule.NEIGHBOURS])
    return Explanation(loaded.name, values, slug, choice, made.file, *_predicted(made, choice), near)


def _near(made: Chooser, one: rule.Neighbour, choice: Choice) -> Near:
    """Return what is known of a choice at a tuned problem."""
    there = one.tuned
    ratio = there.near.get(made.label_of(choice) or "")
    if ratio is None and choice.provider == made.kernel.baseline and there.us and there.baseline_us:
        ratio = there.baseline_us / there.us
    return Near(there.problem, one.distance, ratio)


Times = tuple[TimedChoice | None, TimedChoice | None, TimedChoice | None]
"""The times of the choice, of the baseline if it is not the choice, and of the runner-up."""


def _measured(made: Chooser, row: TunedProblem) -> Times:
    best = made.tuned.configurations[row.best]
    low, high = row.interval_us
    time = TimedChoice(best.provider, best.parameters, row.us, (low, high), row.source, row.commit)
    baseline = None
    if best.provider != made.kernel.baseline and row.baseline_us is not None:
        baseline = _baseline(made, row.baseline_us, row.source)
    other = made.tuned.configurations.get(row.runner_up or "")
    runner_up = None
    if other is not None:
        runner_up = TimedChoice(other.provider, other.parameters, row.runner_up_us, source=row.source)
    return time, baseline, runner_up


def _predicted(made: Chooser, choice: Choice) -> Times:
    """Return predicted times. The baseline's time is predicted by a configuration's time and its speedup over
    the baseline, which errs less than the baseline's times at other problems."""
    usable = [label for label in made.ranked if made.against(label) is None]
    is_baseline = choice.provider == made.kernel.baseline
    by = next(iter(usable), None) if is_baseline else made.label_of(choice)
    if by is None:
        return None, None, None
    ratio = prediction.speedup(made.around, by)
    us = made.predicted_us(by)
    of_baseline = None if us is None or ratio is None else us * ratio
    of_baseline = made.predicted.get(made.kernel.baseline, of_baseline)
    baseline = _baseline(made, of_baseline, "prediction")
    can_call = made.has_baseline
    others = [
        TimedChoice(one.provider, one.parameters, made.predicted_us(each), source="prediction")
        for each in usable
        if (one := made.tuned.configurations[each]).provider not in (choice.provider, made.kernel.baseline)
    ][:1]
    is_known = can_call or (baseline.is_prepared and baseline.us is not None)
    if is_baseline:
        runner_up = next(iter(others), None)
        return (baseline, None, runner_up) if can_call else (None, baseline if is_known else None, runner_up)
    others += [baseline] if can_call and baseline.us is not None else []
    runner_up = min(others, key=lambda one: math.inf if one.us is None else one.us, default=None)
    time = TimedChoice(choice.provider, choice.parameters, us, source="prediction")
    return time, baseline if is_known else None, runner_up


def _baseline(made: Chooser, us: float | None, source: str) -> TimedChoice:
    """Return the baseline with its time."""
    name = made.kernel.baseline
    is_prepared = not takes_inputs(made.kernel.provider(name))
    return TimedChoice(name, {}, us, source=source, is_prepared=is_prepared)


def _trains(given: tuple[Any, ...]) -> bool:
    """Whether a call needs a gradient."""
    return torch.is_grad_enabled() and any(
        isinstance(one, torch.Tensor) and one.requires_grad for one in given
    )


def _gpu(slug: str) -> Gpu | None:
    """Return the properties of a GPU that has a table. Raises ValueError if there is none that can be
    used."""
    found = table_files.table_of(slug)
    if found is None:
        known = ", ".join(sorted(table_files.tables())) or "none"
        raise ValueError(f"there is no usable table of the GPU {slug!r}; the tables: {known}.")
    return found.properties


def _torch(reason: str) -> Choice:
    return Choice("torch", {}, "torch", reason)


def _configured(provider: str, parameters: Mapping[str, Value]) -> str:
    return " ".join(filter(None, [provider, _named(parameters)]))


def _named(values: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={shown(value)}" for name, value in values.items())
