"""Recognise calls like an earlier one in one step.

torch.compile recognises the inputs of a graph by ``TensorGuards``. A check compares each tensor's Python
type, dtype, device, shape, strides, ``requires_grad``, and the dispatch keys, including the thread's. So it
also fails after a dispatch mode, a trace or a transformation of ``torch.func`` has begun, or for a tensor
of another kind. It does not detect function modes, dual numbers, or whether gradients are switched on.
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
    """A known kind of call. ``check(*tensors)`` recognises the first ``count`` arguments, which are
    tensors; ``others`` are the remaining ones. ``trains`` says whether a gradient is needed while gradients
    are switched on. ``run(*tensors)`` returns the answer, ``asked`` counts the calls.
    """

    check: Callable[..., bool]
    count: int
    others: tuple[Any, ...]
    trains: bool
    run: Callable[..., Result]
    asked: Asked

    def recognises(self, args: tuple[Any, ...]) -> bool:
        """Whether a call is of this kind if gradients are switched off."""
        tensors, others = args[: self.count], args[self.count :]
        return len(tensors) == self.count and others == self.others and self.check(*tensors)


def known(args: tuple[Any, ...], filled: tuple[Any, ...], plan: CallPlan) -> Known | None:
    """Return the kind of a call that has a plan; ``filled`` are all its arguments. None for a call with a
    tensor after another argument.
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
    """Return the check of such tensors. Guards refuse a tensor that is given twice, so each tensor then
    gets its own guard."""
    if len({id(one) for one in tensors}) < len(tensors):
        checks = [_check((one,)) for one in tensors]
        return lambda *given: all(check(one) for check, one in zip(checks, given, strict=True))
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
