"""Calls on a device that nobody times: several processes make theirs at once, none beside a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from pipeline.inspection.code_scope import Scope
from pipeline.machine.lock import DeviceLock


@contextmanager
def calls(scope: Scope, warn: Callable[[str], None], *, alone: bool = False) -> Iterator[None]:
    """The scope's device, for calls that are not timed; ``alone`` keeps off those of other processes, too,
    which may hold the memory that these need. The memory that torch keeps is given back after it.

    Raises UserError when the device is measured on for longer than the scope waits.
    """
    with DeviceLock(scope.device, scope.wait_s, warn, shared=not alone):
        try:
            yield
        finally:
            with suppress(RuntimeError):  # of a device that a provider has spoilt for this process
                torch.cuda.empty_cache()
