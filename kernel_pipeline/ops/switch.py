"""One switch for the whole process: torch computes every call of a function.

It is on if ``KERNELS_TORCH=1`` is in the environment at the first call, and within ``by_torch``. Plans of the
two states are kept apart, and known kinds of calls are dropped when the state changes. So a recognised call,
which runs without a look at the switch, belongs to the present state, and the switch costs nothing at such a
call.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

VARIABLE = "KERNELS_TORCH"

lock = threading.RLock()
"""Held while the state changes, and while a known kind of call is kept."""

_within: list[None] = []
"""An item for each entered ``by_torch``."""

_droppers: list[Callable[[], None]] = []


def drop_at_change(drop: Callable[[], None]) -> None:
    """Call ``drop`` whenever the state changes."""
    _droppers.append(drop)


def reason() -> str | None:
    """Return the reason why torch computes every call, as a sentence; None if the switch is off."""
    if _within:
        return "torch computes every call within ops.by_torch()."
    return f"torch computes every call, because {VARIABLE} is set." if _is_set() else None


def is_on() -> bool:
    """Whether torch computes every call."""
    return bool(_within) or _is_set()


@functools.cache
def _is_set() -> bool:
    return os.environ.get(VARIABLE, "") not in ("", "0")


@contextmanager
def by_torch() -> Iterator[None]:
    """Switch on for the block. Blocks may be nested, and several threads may enter one."""
    with lock:
        _within.append(None)
        _drop_if(len(_within) == 1)
    try:
        yield
    finally:
        with lock:
            _within.pop()
            _drop_if(not _within)


def _drop_if(is_change: bool) -> None:
    if is_change:
        for drop in _droppers:
            drop()
