"""Register ops as operators of ``torch.library``, with a fake implementation and a derivative.

Operators are defined by a schema and implemented in Python below autograd, because
``torch.library.custom_op`` would wrap each call in checks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from .declaration import Op, Result

NAMESPACE = "kernel_pipeline"

_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def register(
    op: Op, run: Callable[..., Result], by_torch: Callable[..., Result], trains: Callable[..., bool]
) -> torch._ops.OpOverload:
    """Register the operator of an op and return it. Calls below autograd go to ``run``. Calls with fake
    tensors go to ``by_torch``. If the op names a kernel for ``training``, calls that need a gradient go to
    that kernel's op if ``trains`` is true, and to ``by_torch`` otherwise."""
    schema = torch.library.infer_schema(op.definition, mutates_args=())
    _library.define(f"{op.name}{schema}")  # type: ignore[no-untyped-call]
    _library.impl(op.name, _promised(op, run), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    name = f"{NAMESPACE}::{op.name}"
    torch.library.register_fake(name, _promised(op, by_torch), lib=_library)
    operator: torch._ops.OpOverload = getattr(torch.ops.kernel_pipeline, op.name).default
    if op.training is not None:
        _library.impl(op.name, _with_training(operator, op.training, trains, by_torch), "Autograd")  # type: ignore[no-untyped-call]
    else:
        backward, keep = _derivative(op)
        torch.library.register_autograd(name, backward, setup_context=keep, lib=_library)
    return operator


def _promised(op: Op, function: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap a function so that its outputs have the op's layout whatever the provider. A function that only
    torch computes keeps torch's layout."""
    if op.problem is None:
        return function

    def packed(*args: Any) -> Result:
        out = function(*args)
        if isinstance(out, torch.Tensor):
            return op.laid_out(out, *args)
        return tuple(op.laid_out(one, *args) for one in out)

    return packed


def _with_training(
    operator: torch._ops.OpOverload,
    training: str,
    trains: Callable[..., bool],
    by_torch: Callable[..., Result],
) -> Callable[..., Result]:
    """Return the Autograd implementation of an op for whose ``training`` there is a kernel."""

    def at_autograd(*args: Any) -> Result:
        if torch.is_grad_enabled() and any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in args
        ):
            if not trains(*args):
                return by_torch(*args)
            return getattr(torch.ops.kernel_pipeline, training).default(*args)[0]
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    return at_autograd


def _derivative(op: Op) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return ``backward`` and ``setup_context`` for ``torch.library.register_autograd``."""
    names = list(inspect.signature(op.definition).parameters)
    derivative = op.derivative

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if derivative is None:
            ctx.count = len(inputs)
            return
        outs = output if isinstance(output, tuple) else (output,)
        values = dict(zip(names, inputs, strict=True)) | {"out": outs[0], "outs": outs}
        kept = {}
        for name in derivative.keeps:
            argument, _, fact = name.partition(".")
            if fact:
                kept[f"{argument}_{fact}"] = getattr(values[argument], fact)
            elif name != "outs":
                only_for = derivative.only_for.get(name)
                kept[name] = values[name] if only_for is None or values[only_for].requires_grad else None
        tensors = {name: value for name, value in kept.items() if isinstance(value, torch.Tensor)}
        further = outs if "outs" in derivative.keeps else ()
        ctx.save_for_backward(*tensors.values(), *further)
        ctx.names = tuple(tensors)
        ctx.others = {name: value for name, value in kept.items() if name not in tensors}
        ctx.is_tensor = tuple(isinstance(value, torch.Tensor) for value in inputs)
        ctx.mark_non_differentiable(*outs[1:])

    def backward(ctx: Any, grad: torch.Tensor, *of_others: Any) -> Any:
        del of_others
        if derivative is None:
            raise NotImplementedError(f"{op.name} has no derivative: call it under torch.no_grad().")
        saved = ctx.saved_tensors
        count = len(ctx.names)
        kept = dict(zip(ctx.names, saved[:count], strict=True)) | ctx.others
        if saved[count:]:
            kept["outs"] = tuple(saved[count:])
        made = iter(derivative.formula(grad, **kept))
        return tuple(next(made) if is_tensor else None for is_tensor in ctx.is_tensor)

    return backward, keep
