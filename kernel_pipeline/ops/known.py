"""Recognise calls like an earlier call in one step.

The check uses ``TensorGuards``, by which torch.compile recognises the inputs of a graph. It compares each
tensor's Python type, dtype, device, shape, strides, ``requires_grad``, and dispatch keys, including the
thread's. So it also fails inside a dispatch mode, a trace or a transformation of ``torch.func``, and for a
tensor of another kind. It does not detect function modes, dual numbers, or whether gradients are enabled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._C._dynamo.guards import TensorGuards

from .asked import Asked

if TYPE_CHECKING:
    from .declaration import Result
    from .plans import CallPlan


@dataclass(slots=True)
class Known:
    """A known kind of call.

    ``check(*tensors)`` recognises the first ``count`` arguments, which are tensors. ``others`` are the values
    of the remaining arguments. ``trains`` says whether a tensor requires a gradient. ``run(*tensors)``
    returns the result, and ``asked`` counts the calls.
    """

    check: Callable[..., bool]
    count: int
    others: tuple[Any, ...]
    trains: bool
    run: Callable[..., Result]
    asked: Asked

    def recognises(self, args: tuple[Any, ...]) -> bool:
        """Whether a call is of this kind, apart from whether gradients are enabled."""
        tensors, others = args[: self.count], args[self.count :]
        return len(tensors) == self.count and others == self.others and self.check(*tensors)


def known(args: tuple[Any, ...], filled: tuple[Any, ...], plan: CallPlan) -> Known | None:
    """Return the kind of a call that has a plan. ``args`` are the arguments as passed, ``filled`` includes
    defaults. Return None for a call with a tensor after an argument that is not a tensor.
    """
    is_tensor = [isinstance(one, torch.Tensor) for one in args]
    count = sum(is_tensor)
    tensors, rest, run = args[:count], filled[count:], plan.run
    if not all(is_tensor[:count]):
        return None
    if plan.known is not None and plan.known.recognises(args):
        return plan.known
    if plan.takes != count and rest:
        taken = rest if plan.takes is None else rest[: plan.takes - count]
        run = lambda *tensors: plan.run(*tensors, *taken)  # noqa: E731
    trains = any(one.requires_grad for one in tensors)
    plan.known = Known(_check(tensors), count, args[count:], trains, run, plan.asked)
    return plan.known


def _check(tensors: tuple[torch.Tensor, ...]) -> Callable[..., bool]:
    """Return a check that recognises tensors like these. Guards refuse duplicate tensors; if a tensor occurs
    twice, each tensor gets its own guard."""
    if len({id(one) for one in tensors}) < len(tensors):
        checks = [_check((one,)) for one in tensors]
        return lambda *given: all(check(one) for check, one in zip(checks, given, strict=True))
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
