"""Repeat the launches of a Triton provider's call, without the Python code that led to them.

At each launch Triton looks for the compiled kernel that its arguments need, which takes longer than the
launch itself (docs/ops.md). The form of a call determines all arguments but the tensors' addresses. So a call
is recorded: what it allocated, and the compiled kernels that it launched, with their grids and arguments.
A function that is made of this record allocates and launches the same for the tensors of later calls. As
Triton's own launcher, it is Python that was written for this one purpose.

A call is repeated only if it did nothing else than allocate, view and launch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ALIGNMENT = 16
"""Triton compiles one kernel for addresses that are multiples of this many bytes, and one for others."""

ALLOCATIONS = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)

LITERALS = (int, float, bool, str, type(None))

_one_at_a_time = threading.RLock()


@dataclass
class Recording:
    """What a call allocated and launched. ``is_complete`` is False if it did anything else."""

    allocated: list[torch.Tensor] = field(default_factory=list)
    launches: list[tuple[Any, Sequence[int], dict[str, Any]]] = field(default_factory=list)
    is_complete: bool = True


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what the functions of torch allocate, and notes functions that compute."""

    def __init__(self, record: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in ALLOCATIONS:
            self.record.allocated.append(out)
        elif not func.is_view:
            self.record.is_complete = False
        return out


@contextmanager
def recorded() -> Iterator[Recording]:
    """Record the calls of this thread within the context; one thread at a time."""
    from ..execution.launch_recorder import triton_launches

    record, thread = Recording(), threading.get_ident()

    def report(compiled: Any, grid: Any, arguments: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            blocks = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
            record.launches.append((compiled, (*blocks, 1, 1)[:3], arguments))

    with _one_at_a_time, triton_launches(report), _Watch(record):
        yield record


class NotRepeatableError(Exception):
    """A recorded call can't be repeated from its record."""


def repeated(
    record: Recording, args: Sequence[Any], out: Any, otherwise: Callable[..., Any], stream: Callable[[], int]
) -> Callable[..., Any] | None:
    """Return a function that repeats a recorded call for arguments of the same form; None if it can't.

    ``args`` and ``out`` are the recorded call's. ``otherwise`` computes calls whose tensors are less aligned.
    ``stream`` returns the address of the current stream.
    """
    if not record.is_complete or not record.launches:
        return None
    try:
        return _Writer(record, args, out, otherwise, stream).function()
    except NotRepeatableError:
        return None


class _Writer:
    """Writes the function that repeats a call. Its arguments are ``a0``, ``a1``, ..., what it allocates is
    ``o0``, ``o1``, ..., and all other values are names of its globals."""

    def __init__(
        self,
        record: Recording,
        args: Sequence[Any],
        out: Any,
        otherwise: Callable[..., Any],
        stream: Callable[[], int],
    ) -> None:
        self.record, self.args, self.out = record, args, out
        self.names: dict[str, Any] = {"otherwise": otherwise, "stream": stream, "torch": torch}
        self.inputs = {f"a{i}": one for i, one in enumerate(args) if isinstance(one, torch.Tensor)}
        self.made = {f"o{i}": one for i, one in enumerate(record.allocated)}
        self.origins: dict[int, str] = {}
        for name, one in {**self.inputs, **self.made}.items():
            if self.origins.setdefault(one.untyped_storage().data_ptr(), name) != name and one.numel():
                raise NotRepeatableError("two tensors share memory, and need not in later calls")
        self.aligned: set[str] = set()
        self.outputs: set[str] = set()

    def function(self) -> Callable[..., Any]:
        """Return the function."""
        result = self._result()  # may change how outputs are allocated
        launches = [self._launch(i, *launch) for i, launch in enumerate(self.record.launches)]
        given = ", ".join(f"a{i}" for i in range(len(self.args)))
        lines = [f"{_address(name)} = {name}.data_ptr()" for name in self.inputs]
        if self.aligned:
            all_bits = " | ".join(sorted(map(_address, self.aligned)))
            lines += [f"if ({all_bits}) % {ALIGNMENT}:", f"    return otherwise({given})"]
        for name, one in self.made.items():
            lines += [f"{name} = {self._allocation(one)}", f"{_address(name)} = {name}.data_ptr()"]
        lines += ["now = stream()", *launches, f"return {result}"]
        source = f"def repeat({given}):\n" + "".join(f"    {line}\n" for line in lines)
        exec(source, self.names)  # written above, of no text from outside
        made: Callable[..., Any] = self.names["repeat"]
        return made

    def _launch(self, number: int, compiled: Any, grid: Sequence[int], arguments: dict[str, Any]) -> str:
        names = {"run": compiled.run, "function": compiled.function, "metadata": compiled.packed_metadata}
        self.names |= {f"{name}{number}": value for name, value in names.items()}
        given: list[str] = []
        for parameter in compiled.src.fn.params:
            value = arguments.get(parameter.name, parameter.default)
            given.append(self._argument(value, f"value{number}_{len(given)}", parameter.is_constexpr))
        blocks = ", ".join(str(int(n)) for n in grid)
        no_hooks = "None, None, None"
        return (
            f"run{number}({blocks}, now, function{number}, metadata{number}, {no_hooks}, {', '.join(given)})"
        )

    def _argument(self, value: Any, name: str, is_constexpr: bool) -> str:
        """Return a launch's argument: an address, or a constant."""
        if isinstance(value, torch.Tensor):
            origin, offset = self._place(value)
            if value.data_ptr() % ALIGNMENT == 0 and origin in self.inputs:
                self.aligned.add(origin)
            return f"{_address(origin)} + {offset}" if offset else _address(origin)
        if not is_constexpr and not isinstance(value, LITERALS):
            raise NotRepeatableError("an argument may hold a tensor")
        self.names[name] = value
        return name

    def _place(self, x: torch.Tensor) -> tuple[str, int]:
        """Return the tensor in whose memory another begins, and how many bytes behind the tensor's begin."""
        origin = self.origins.get(x.untyped_storage().data_ptr())
        if origin is None:
            raise NotRepeatableError("a tensor comes from elsewhere")
        whole = self.inputs.get(origin, self.made.get(origin))
        assert whole is not None
        offset = x.data_ptr() - whole.data_ptr()
        if origin in self.inputs and offset % ALIGNMENT:
            raise NotRepeatableError("a view of an input is less aligned than the input")
        return origin, offset

    def _result(self) -> str:
        """Return the expression of the result: tensors that the call allocates."""
        if isinstance(self.out, torch.Tensor):
            return self._output(self.out)
        if not isinstance(self.out, tuple):
            raise NotRepeatableError("the result is neither a tensor nor several")
        return "(" + "".join(f"{self._output(one)}, " for one in self.out) + ")"

    def _output(self, x: torch.Tensor) -> str:
        origin, offset = self._place(x)
        whole = self.made.get(origin)
        if (
            whole is None
            or origin in self.outputs
            or offset
            or x.dtype != whole.dtype
            or x.numel() != whole.numel()
        ):
            raise NotRepeatableError("an output is not the whole of what was allocated")
        self.outputs.add(origin)
        if x.shape == whole.shape and x.stride() == whole.stride():
            return origin
        if not (x.is_contiguous() and whole.is_contiguous()):
            raise NotRepeatableError("an output is a view in another order")
        self.made[origin] = x  # to be allocated in the shape that is wanted
        return origin

    def _allocation(self, x: torch.Tensor) -> str:
        for name, one in self.inputs.items():
            like = (one.shape, one.dtype, one.device) == (x.shape, x.dtype, x.device)
            if like and one.is_contiguous() and x.is_contiguous():
                return f"torch.empty_like({name})"
        layout = f"{tuple(x.shape)}, {tuple(x.stride())}"
        return f"torch.empty_strided({layout}, dtype={x.dtype}, device={str(x.device)!r})"


def _address(name: str) -> str:
    return f"at_{name}"
