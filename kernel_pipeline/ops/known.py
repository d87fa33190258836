"""Calls like an earlier one, recognised in one step.

torch.compile recognises the inputs of a graph by ``TensorGuards``. A check compares of each tensor the
Python type, dtype, device, shape, strides, ``requires_grad``, and the dispatch keys, those of the thread
included. So it also fails where a dispatch mode, a trace or a transformation of ``torch.func`` has begun
since, or a tensor is of another kind. It sees neither modes of functions, nor dual numbers, nor whether
gradients are switched on.
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
    """A kind of call, and how it runs.

    ``check(*tensors)`` recognises the ``count`` tensors that lead the arguments, ``others`` are the further
    ones. ``trains`` says whether a gradient would be wanted if it were not switched off. ``run(*tensors)``
    gives the answer, ``asked`` counts the calls.
    """

    check: Callable[..., bool]
    count: int
    others: tuple[Any, ...]
    trains: bool
    run: Callable[..., Result]
    asked: Asked

    def recognises(self, args: tuple[Any, ...]) -> bool:
        """Whether a call is of this kind, while gradients are switched off."""
        tensors, others = args[: self.count], args[self.count :]
        return len(tensors) == self.count and others == self.others and self.check(*tensors)


def known(args: tuple[Any, ...], filled: tuple[Any, ...], plan: CallPlan) -> Known | None:
    """The kind of a call whose plan there is, ``filled`` being all its arguments.

    None for a call with a tensor behind another argument.
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
    """The check of such tensors. Guards pass no tensor that is given twice: each has its own then."""
    if len({id(one) for one in tensors}) < len(tensors):
        checks = [_check((one,)) for one in tensors]
        return lambda *given: all(check(one) for check, one in zip(checks, given, strict=True))
    return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
