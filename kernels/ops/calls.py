"""The functions that users call: past the dispatcher where nothing but the answer is wanted.

A call goes through ``torch.ops`` where something else looks at it: autograd, torch.compile, a mode, a
subclass of Tensor. Under ``torch.func`` and forward-mode differentiation, which take no operator's own
derivative, it is torch's function. All other calls look up the plan of their form and run it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import torch
from torch.autograd import forward_ad

from kernels import Loaded
from kernels.ops.declaration import Op, Result
from kernels.ops.plans import MOST_PLANS, Plan, first, form_of
from kernels.ops.registration import register

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Types whose tensors are no more than their data."""


class Function:
    """A kernel's op: ``call`` is what users call, ``plan`` what a call of given arguments does."""

    def __init__(self, op: Op, loaded: Loaded) -> None:
        self.op = op
        self.loaded = loaded
        self.signature = inspect.signature(op.definition)
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._defaults = tuple(one.default for one in self.signature.parameters.values())
        self.operator = register(op, self.run)
        if op.training is not None:
            Function(op.training, loaded)
        self.call: Callable[..., Result] = update_wrapper(self._caller(), op.definition)

    def run(self, *args: Any, **kwargs: Any) -> Result:
        """The answer, whoever looks."""
        args = self.filled(args, kwargs)
        plan = self._plans.get(form_of(args))
        if plan is None:
            return self._first(form_of(args), args)
        plan.asked.calls += 1
        return plan.run(*args)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan of such calls, after one of them if there was none before."""
        args = self.filled(args, kwargs)
        with torch.no_grad():
            if form_of(args) not in self._plans:
                self._first(form_of(args), args)
        return self._plans[form_of(args)]

    def filled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, those that were left out at their defaults. Raises TypeError for
        arguments that the function does not have."""
        if kwargs:
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.args
        return args + self._defaults[len(args) :]

    def forget(self) -> None:
        """Choose again for every form."""
        self._plans.clear()

    def _named(self, form: tuple[Any, ...], args: tuple[Any, ...]) -> Result:
        """The answer to a call that leaves arguments out, whose form gets a plan of its own."""
        out = self.run(*args)
        filled = self.filled(args, {})
        if len(filled) > len(args):
            plan, missing = self._plans[form_of(filled)], filled[len(args) :]
            run = plan.run
            if plan.whole:
                plan = Plan(lambda *args: run(*args, *missing), plan.choice, plan.asked)
            self._plans[form] = plan
        return out

    def _first(self, form: tuple[Any, ...], args: tuple[Any, ...]) -> Result:
        plan, out = first(self.op, self.loaded, args)
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[form] = plan
        plan.asked.calls += 1
        return out

    def _caller(self) -> Callable[..., Result]:
        """The function that users call. All that it uses is a local name, which Python looks up fastest."""
        operator, plans, plain = self.operator, self._plans, PLAIN
        definition = self.op.definition
        parameters = list(self.signature.parameters)
        is_compiling = torch.compiler.is_compiling
        grad_enabled = torch.is_grad_enabled
        dispatch_modes = torch._C._len_torch_dispatch_stack
        function_modes = torch._C._len_torch_function_stack
        functorch = torch._C._functorch.peek_interpreter_stack
        traced = torch._C._get_tracing_state
        dual = forward_ad

        def call(*args: Any, **kwargs: Any) -> Result:  # noqa: PLR0911  # each is a case of its own
            if is_compiling():
                return operator(*args, **kwargs)
            if kwargs:
                args = by_position(args, kwargs)
            if functorch() is not None or dual._current_level >= 0:
                return definition(*args)
            if dispatch_modes() or function_modes() or traced() is not None:
                return operator(*args)
            form: list[Any] = []
            for one in args:
                if type(one) in plain:
                    if one.requires_grad and grad_enabled():
                        return operator(*args)
                    form += (one.shape, one.is_contiguous() or one.stride(), one.dtype, one.device)
                elif isinstance(one, torch.Tensor):
                    return operator(*args)
                else:
                    form.append(one)
            plan = plans.get(tuple(form))
            if plan is None:
                return self._named(tuple(form), args)
            plan.asked.calls += 1
            return plan.run(*args)

        def by_position(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            names = parameters[len(args) : len(args) + len(kwargs)]
            if names == list(kwargs):
                return (*args, *kwargs.values())
            return self.filled(args, kwargs)

        return call
