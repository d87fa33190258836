"""The measured kernels as functions: ``from kernel_pipeline.ops import softmax; y = softmax(x)``.

There is a function for each kernel whose folder has an ``op.py``. It takes tensors of any shape and calls
the provider that was measured as the fastest for this problem on this GPU. ``warm`` compiles ahead of the
first call. ``explain`` says what a call would get and why. ``by_torch`` lets torch compute every call.
``untuned`` lists the problems that were called but never measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .. import loading

if TYPE_CHECKING:
    from .asked import Asked
    from .calls import Function
    from .choice import Choice
    from .declaration import Result
    from .explanation import Explanation


def names() -> list[str]:
    """Return the names of the kernels that are available as functions."""
    return [name for name in loading.names() if (loading.ROOT / name / "op.py").is_file()]


@functools.cache
def function(name: str) -> Function:
    """Return the function of a kernel with its plans. Raises KeyError for a name that is not in
    ``names()``."""
    if name not in names():
        raise KeyError(name)
    from .calls import Function

    loaded = loading.load(name)
    return Function(loaded.module("op.py").op, loaded)


def __getattr__(name: str) -> Callable[..., Result]:
    try:
        found = function(name).call
    except KeyError:
        raise AttributeError(f"kernel_pipeline.ops has no {name}; it has {', '.join(names())}.") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*names(), "by_torch", "explain", "untuned", "warm"]


def warm(call: Callable[..., Result], *args: Any, **kwargs: Any) -> Choice:
    """Build and compile ahead of a call with the given arguments. Return the choice: the provider, its
    parameters, and how and why it was chosen.

    ``warm(softmax, x)`` chooses a provider for tensors like x, builds or compiles it, and calls it once. If a
    tensor requires a gradient, the backward pass is prepared, too. Raises ValueError for a function that this
    module does not define.
    """
    import torch

    found = _function_of(call)
    plan = found.plan(*args, **kwargs)
    if torch.is_grad_enabled():
        given = [*args, *kwargs.values()]
        wanted = [one for one in given if isinstance(one, torch.Tensor) and one.requires_grad]
        if wanted:
            out = call(*args, **kwargs)
            torch.autograd.grad(out, wanted, torch.zeros_like(out), allow_unused=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return plan.choice


def explain(call: Callable[..., Result], *args: Any, gpu: str | None = None, **kwargs: Any) -> Explanation:
    """Return what a call with the given arguments would get, without calling, building or compiling anything.

    ``print(explain(softmax, x))`` prints the provider and its configuration, how they were chosen, the
    measurement or the tuned problems that the choice rests on, measured or predicted times, and the
    runner-up. ``gpu`` names a GPU with a table, such as ``nvidia-h200``, for which the choice is explained;
    the tensors may then be on any device, such as ``meta``. Raises ValueError for a function that this module
    does not define and for an unknown GPU, and as the function does for invalid arguments.
    """
    found = _function_of(call)
    from .explanation import explain

    return explain(found, args, kwargs, gpu)


def by_torch() -> AbstractContextManager[None]:
    """Let torch compute every call within ``with by_torch():``, in all threads of this process.

    ``KERNELS_TORCH=1`` in the environment does the same for the whole process. A call that another thread has
    begun may still finish by its kernel. A CUDA graph replays what it captured. Enter the block around a
    compiled function: inside, it breaks the graph.
    """
    from .switch import by_torch

    return by_torch()


def _function_of(call: Callable[..., Result]) -> Function:
    """Return a kernel's function. Raises ValueError for a function that this module does not define."""
    name = getattr(call, "__name__", "")
    found = function(name) if name in names() else None
    if found is None or found.call is not call:
        raise ValueError(
            f"{call!r} is not a function of kernel_pipeline.ops; its functions: {', '.join(names())}."
        )
    return found


def untuned() -> list[Asked]:
    """Return the problems that this process called but that were never tuned, the most frequent first.

    Each entry has ``kernel``, ``dimensions``, ``calls``, and ``choice`` with the reason. With
    ``KERNELS_UNTUNED=file`` in the environment the problems are written to that file when the process ends.
    """
    from . import asked

    return asked.untuned()
