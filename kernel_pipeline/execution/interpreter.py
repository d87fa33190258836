"""Work around faults of Triton's interpreter and Numba's simulator, which differ from a GPU.

Faults that can't be worked around are distinguished from a provider's own.
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .. import loading, tracebacks
from .offline import choose_no_device, no_time

NO_GPU = (
    *("active drivers", "not compiled with CUDA enabled", "No CUDA GPUs are available"),
    *("Found no NVIDIA driver", "no CUDA-capable device is detected"),
    "'InterpreterBuilder' object has no attribute",
)
"""Texts of exceptions of Triton and torch for operations that need a GPU."""

OWN = (AttributeError, NotImplementedError, AssertionError, KeyError)
"""Exceptions that an interpreter raises for an operation that it does not support."""

PLACES = ("triton/runtime/interpreter.py", "numba/cuda/simulator/", "numba_cuda/numba/cuda/simulator/")
"""The paths of the interpreters' modules."""

LIBDEVICE = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf"),
    *("erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "lgamma", "log", "log10", "log1p"),
    *("log2", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
"""Functions of CUDA's libdevice that torch has under the same name."""

HIGH_HALF = 16
"""A bfloat16 is the upper half of a float32: it lacks the lower 16 bits."""


def reason(error: BaseException) -> str | None:
    """Return why an exception of an interpreted call is not the provider's fault; None if it may be."""
    if any(_is_of_interpreter(one) for one in _causes(error)):
        folders = [loaded.folder for loaded in loading.known()]
        return f"only a GPU can tell: {tracebacks.described(error, folders)}"
    return None


def _is_of_interpreter(error: BaseException) -> bool:
    if any(words in str(error) for words in NO_GPU):
        return True
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return False
    code = frames[-1][0].f_code
    if isinstance(error, OWN) and any(place in Path(code.co_filename).as_posix() for place in PLACES):
        return True
    # A tensor on a CPU has no device index.
    with suppress(OSError, TypeError):
        return "NoneType" in str(error) and ".device.index" in inspect.getsource(code)
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


@cache
def mend() -> None:
    """Patch Triton's interpreter, if this process uses it.

    It then computes correctly in bfloat16, rounds as a GPU does, accepts Python floats as tensors, inverts
    unsigned integers, knows the usual functions of libdevice, and does not tune: an autotuned function runs
    in its first configuration. Without a GPU, contexts that choose one do nothing. Unpatched, the interpreter
    (Triton 3.7) holds bfloat16 as 16-bit integers and computes with these integers.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import torch
    from triton.runtime import interpreter
    from triton.runtime.autotuner import Autotuner

    Autotuner.do_bench = property(lambda tuner: no_time)
    if not torch.cuda.is_available():
        choose_no_device()
    _mend_arguments(interpreter)
    _mend_builder(interpreter)
    _mend_reductions(interpreter)
    _mend_libdevice(interpreter)


def _mend_arguments(interpreter: Any) -> None:
    convert, tl = interpreter._implicit_cvt, interpreter.tl

    def converted(argument: Any) -> Any:
        if isinstance(argument, float):
            return tl.tensor(
                interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32), tl.float32
            )
        return convert(argument)

    interpreter._implicit_cvt = converted


def _mend_builder(interpreter: Any) -> None:
    """Compute operations on bfloat16 in float32, and round the result."""
    builder, handle, tl = interpreter.InterpreterBuilder, interpreter.TensorHandle, interpreter.tl

    def is_short(one: Any) -> bool:
        return isinstance(one, handle) and one.dtype.scalar == tl.bfloat16

    def wider(one: Any) -> Any:
        return handle(widened(one.data), tl.float32) if is_short(one) else one

    def in_float32(method: Callable[..., Any]) -> Callable[..., Any]:
        def done(self: Any, *arguments: Any) -> Any:
            if not any(is_short(one) for one in arguments):
                return method(self, *arguments)
            made = method(self, *map(wider, arguments))
            if made.data.dtype == bool:
                return handle(made.data, tl.bfloat16)
            return handle(rounded(made.data), tl.bfloat16)

        return done

    for name in ("binary_op", "unary_op", "create_fma", "create_rsqrt", "create_erf", "create_clampf"):
        setattr(builder, name, in_float32(getattr(builder, name)))
    dot, cast, atomic = builder.create_dot, builder.cast_impl, builder.create_atomic_rmw

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(self, wider(a), wider(b), d, *rest)

    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        if to.scalar == tl.bfloat16 and not is_short(source):
            return handle(rounded(source.data), tl.bfloat16)
        return cast(self, wider(source), to)

    def create_fp_to_fp(self: Any, source: Any, to: Any, mode: Any) -> Any:
        if to.scalar == tl.bfloat16 and source.dtype.scalar == tl.float32 and mode == nearest:
            return handle(rounded(source.data), tl.bfloat16)
        return convert(self, source, to, mode)

    def create_atomic_rmw(self: Any, operation: Any, pointer: Any, value: Any, *rest: Any) -> Any:
        if is_short(value):
            raise NotImplementedError("the interpreter has no atomic operations on bfloat16")
        return atomic(self, operation, pointer, value, *rest)

    def get_all_ones_value(self: Any, kind: Any) -> Any:
        # The interpreter's own would convert -1 to the dtype, which numpy refuses for unsigned integers.
        data = self.get_null_value(kind).data
        return handle(data == 0 if data.dtype == bool else np.bitwise_not(data), kind.scalar)

    convert, nearest = builder.create_fp_to_fp, interpreter._ir.ROUNDING_MODE.RTNE
    create_atomic_rmw.__code__ = create_atomic_rmw.__code__.replace(co_filename=interpreter.__file__)
    builder.get_bf16 = lambda self, value: handle(rounded(np.array([value])), tl.bfloat16)
    builder.create_dot, builder.cast_impl = create_dot, cast_impl
    builder.get_all_ones_value = get_all_ones_value
    builder.create_fp_to_fp, builder.create_atomic_rmw = create_fp_to_fp, create_atomic_rmw


def _mend_reductions(interpreter: Any) -> None:
    """Compute sums, extremes and scans of bfloat16 in float32, and round at the end."""
    tl = interpreter.tl

    def in_float32(method: Callable[..., Any]) -> Callable[..., Any]:
        def done(self: Any, given: Any, *rest: Any, **named: Any) -> Any:
            if isinstance(given, tuple) or given.dtype.scalar != tl.bfloat16:
                return method(self, given, *rest, **named)
            made = method(self, given.to(tl.float32), *rest, **named)
            several = made if isinstance(made, (tuple, list)) else (made,)
            short = [one.to(tl.bfloat16) if one.dtype.scalar == tl.float32 else one for one in several]
            return type(made)(short) if isinstance(made, (tuple, list)) else short[0]

        return done

    for owner, names in (
        (interpreter.ReduceOps, ("sum", "min_max")),
        (interpreter.ScanOps, ("cumsum", "cumprod")),
    ):
        for name in names:
            setattr(owner, name, in_float32(getattr(owner, name)))


def _mend_libdevice(interpreter: Any) -> None:
    """Compute functions of libdevice in float64, and round. The interpreter calls Triton's declarations of
    these functions, which return None."""
    import torch
    from triton.language.extra import libdevice

    tl = interpreter.tl

    def by_torch(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
        def done(*arguments: Any) -> Any:
            like = next(one for one in arguments if isinstance(one, tl.tensor))
            given = [one.handle.data if isinstance(one, tl.tensor) else one for one in arguments]
            exact = function(*(torch.as_tensor(one, dtype=torch.float64) for one in given))
            data = exact.numpy().astype(like.handle.data.dtype)
            return tl.tensor(interpreter.TensorHandle(data, like.dtype.scalar), like.type)

        return done

    for name in LIBDEVICE:
        setattr(libdevice, name, by_torch(getattr(torch, name)))


def widened(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert the bits of bfloat16 numbers to float32."""
    return (data.astype(np.uint32) << HIGH_HALF).view(np.float32)


def rounded(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round numbers to bfloat16, to nearest even. Returns their bits."""
    single = np.ascontiguousarray(data, dtype=np.float32)
    bits = single.view(np.uint32).astype(np.uint64)
    up = bits + 0x7FFF + ((bits >> HIGH_HALF) & 1)
    short = (up >> HIGH_HALF).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), short).reshape(np.shape(data))
