"""The functions that users call. They skip torch's dispatcher if only the result is needed.

A call goes through ``torch.ops`` if autograd, torch.compile, a dispatch mode or a Tensor subclass needs to
see it. Under ``torch.func`` and forward-mode differentiation, which do not support an operator's own
derivative, torch computes the call. All other calls run the plan of their form.

A call like an earlier call is recognised in one step (module ``known``). Other calls are examined step by
step, which takes longer (``Function._looked_at``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import torch
from torch.autograd import forward_ad

from ..loading import Loaded
from . import switch
from .asked import Asked
from .choice import Choice
from .declaration import NotServedError, Op, Result
from .known import Known, known
from .options import options_of, tensors_of
from .plans import MOST_PLANS, CallPlan, first, form_of
from .registration import NAMESPACE, register

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""The types of plain tensors, which are not subclasses with their own behaviour."""

MOST_KNOWN = 4
"""The maximum number of kinds of call to recognise for the same shapes (``Function._shape``); the latest are
kept."""


class Function:
    """A kernel's op with its plans. ``call`` is the function that users call."""

    def __init__(self, op: Op, loaded: Loaded) -> None:
        self.op = op
        self.loaded = loaded
        self.signature = inspect.signature(op.definition)
        self._plans: tuple[dict[tuple[Any, ...], CallPlan], ...] = {}, {}  # by whether the switch is on
        self._known: dict[Any, tuple[Known, ...]] = {}
        switch.drop_at_change(self._known.clear)
        parameters = self.signature.parameters.values()
        self._defaults = tuple(one.default for one in parameters)
        self._required = sum(one.default is one.empty for one in parameters)
        self._options = options_of(self.signature, loaded)
        self._tensors = tensors_of(op.definition)
        self._with_options = op.with_options or op.definition
        self._names = frozenset(self.signature.parameters)
        self.operator = register(op, self.run, self.by_torch, self.trains)
        # A compiled graph that is loaded from a cache calls these operators without this function's formula.
        further = (op.training, None if op.derivative is None else op.derivative.kernel)
        for name in filter(None, further):
            from . import function

            function(name)
        self.call: Callable[..., Result] = update_wrapper(self._caller(), self._with_options)
        # Pickle imports the function from this module; the definition lies elsewhere.
        self.call.__module__ = __name__.rpartition(".")[0]

    def run(self, *args: Any, **kwargs: Any) -> Result:
        """Return the result of a call by its plan."""
        return self._planned(self.filled(args, kwargs), switch.is_on())[1]

    def by_torch(self, *args: Any, **kwargs: Any) -> Result:
        """Return the result of the definition in torch. Raises as ``check`` does."""
        args = self.filled(args, kwargs)
        self.check(args)
        return self.op.definition(*args)

    def trains(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a call that needs a gradient goes to the op's ``training``."""
        return not switch.is_on() and self.op.trains(*self.filled(args, kwargs))

    def plan(self, *args: Any, **kwargs: Any) -> CallPlan:
        """Return the plan of a call. If there is no plan, make it by calling once. A call that only
        ``with_options`` computes has nothing to plan."""
        try:
            args = self.filled(args, kwargs)
        except NotServedError as reason:
            choice = Choice("torch", {}, "torch", str(reason))
            return CallPlan(self._with_options, choice, Asked(self.loaded.name, None, choice))
        self._check_tensors(args)
        is_on = switch.is_on()
        plan = self._plans[is_on].get(form_of(args))
        if plan is None:
            with torch.no_grad():
                plan, _ = self._planned(args, is_on)
        return plan

    def checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments of a call by position. Raises TypeError and ValueError for invalid arguments,
        as a call does."""
        filled = self.filled(args, kwargs)
        self._check_tensors(filled)
        self.check(filled)
        return filled

    def filled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, with defaults filled in. Raises TypeError for unknown or missing
        arguments, and as ``without_options`` does."""
        if kwargs or not self._required <= len(args) <= len(self._defaults):
            args, kwargs = self.without_options(args, kwargs)
            bound = self.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.args
        return args + self._defaults[len(args) :]

    def without_options(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of an equal call without further options. Raises NotServedError for a call
        that only the op's ``with_options`` computes, and TypeError and ValueError for invalid arguments."""
        if self.op.with_options is None or self._names.issuperset(kwargs):
            return args, kwargs
        self._check_tensors(args)
        for option in self._options:
            option.check(args, kwargs)
        return self.op.without_options(*args, **kwargs), {}

    def check(self, args: tuple[Any, ...]) -> None:
        """Check the arguments. Raises ValueError, with a sentence, if an option has an unknown value or a
        value that does not fit the tensors."""
        for option in self._options:
            option.check(args, {})
        if reason := self.op.refused(*args):
            raise ValueError(f"{reason}.")

    def _check_tensors(self, args: tuple[Any, ...]) -> None:
        """Raise TypeError, with a sentence, for an argument that is not a dense tensor."""
        for tensor in self._tensors:
            tensor.check(args)

    def forget(self) -> None:
        """Drop all plans, so that providers are chosen again."""
        for plans in self._plans:
            plans.clear()
        self._known.clear()

    def _planned(self, args: tuple[Any, ...], is_on: bool) -> tuple[CallPlan, Result]:
        """Return the plan and the result of a call; ``args`` are complete. ``is_on`` is the switch's
        state."""
        plans, form = self._plans[is_on], form_of(args)
        plan = plans.get(form)
        if plan is not None:
            out = plan.run(*args[: plan.takes])
        else:
            self.check(args)
            plan, out = first(self.op, self.loaded, args, is_on)
            if len(plans) >= MOST_PLANS:
                self.forget()
            plans[form] = plan
        plan.asked.calls += 1
        return plan, out

    def _looked_at(self, args: tuple[Any, ...]) -> Result:
        """Return the result of a call that was not recognised. If only the result is needed, recognise such
        calls from now on."""
        self._check_tensors(args)
        if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
            return self.by_torch(*args)
        if torch.compiler.is_compiling() or self._is_watched(args):
            for option in self._options:  # the dispatcher would convert any number or None to a boolean
                option.check(args, {})
            return self._dispatched(args)
        filled = self.filled(args, {})
        is_on = switch.is_on()
        plan, out = self._planned(filled, is_on)
        if (kind := known(args, filled, plan)) is not None:
            shape = self._shape(args)
            with switch.lock:
                if switch.is_on() == is_on:  # another thread may have changed it
                    self._known[shape] = (kind, *self._known.get(shape, ())[: MOST_KNOWN - 1])
        return out

    def _dispatched(self, args: tuple[Any, ...]) -> Result:
        """Return the operator's result. Raises TypeError, with a sentence, for a tensor subclass that does
        not implement this operator."""
        try:
            return self.operator(*args)
        except (TypeError, NotImplementedError) as error:
            of_class = [type(one) for one in args if isinstance(one, torch.Tensor) and type(one) not in PLAIN]
            if not of_class or NAMESPACE not in str(error):
                raise
            raise TypeError(
                f"{of_class[0].__name__} does not implement {self.op.name}: pass a plain tensor, or call "
                "torch's own function."
            ) from error

    def _is_watched(self, args: tuple[Any, ...]) -> bool:
        """Whether the dispatcher must see a call: a mode or a trace is active, a gradient is needed, or a
        tensor is of a subclass or has its negative or conjugate bit set."""
        if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
            return True
        if torch._C._get_tracing_state() is not None:
            return True
        trains = torch.is_grad_enabled()
        for one in args:
            if isinstance(one, torch.Tensor) and (
                type(one) not in PLAIN or (trains and one.requires_grad) or one.is_neg() or one.is_conj()
            ):
                return True
        return False

    def _shape(self, args: tuple[Any, ...]) -> Any:
        """Return the key of known calls: the shapes of the first and of the last required tensor. The lengths
        of queries and values change at each step of a language model."""
        return args[0].shape if self._required == 1 else (args[0].shape, args[self._required - 1].shape)

    def _caller(self) -> Callable[..., Result]:
        """Return the function that users call. It uses local names only, because Python looks them up
        fastest."""
        operator, plain, required, last = self.operator, PLAIN, self._required, self._required - 1
        options, with_options = self._options, self._with_options
        known_of, looked_at = self._known.get, self._looked_at
        parameters = list(self.signature.parameters)
        is_compiling = torch.compiler.is_dynamo_compiling
        dispatch_modes = torch._C._len_torch_dispatch_stack
        is_overridden = torch._C._has_torch_function_unary  # also true under a function mode
        grad_enabled, dual = torch.is_grad_enabled, forward_ad

        def call(*args: Any, **kwargs: Any) -> Result:
            if is_compiling():
                try:
                    args, kwargs = self.without_options(args, kwargs)
                except NotServedError:
                    return with_options(*args, **kwargs)
                for option in options:
                    option.check(args, kwargs)
                return operator(*args, **kwargs)
            if kwargs or len(args) < required:
                try:
                    args = by_position(args, kwargs)
                except NotServedError:
                    return with_options(*args, **kwargs)
            x = args[0]
            # First rule out the cases that no check detects. Under a mode a shape may hold unhashable
            # symbols.
            if type(x) in plain and not is_overridden(x) and not dispatch_modes() and dual._current_level < 0:
                try:
                    several = known_of(x.shape if last == 0 else (x.shape, args[last].shape), ())
                except (AttributeError, RuntimeError, TypeError):  # refused below: it has no shape
                    several = ()
                for one in several:
                    tensors = args[: one.count]
                    as_many = len(tensors) == one.count and args[one.count :] == one.others
                    if as_many and one.check(*tensors) and not (one.trains and grad_enabled()):
                        one.asked.calls += 1
                        return one.run(*tensors)
            return looked_at(args)

        def by_position(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            names = parameters[len(args) : len(args) + len(kwargs)]
            if names == list(kwargs) and len(args) + len(kwargs) >= required:
                return (*args, *kwargs.values())
            return self.filled(args, kwargs)

        return call
