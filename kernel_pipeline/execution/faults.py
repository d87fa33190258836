"""Turn exceptions of providers, references and the verifier into statuses."""

from __future__ import annotations

import re

import torch

from .. import loading, tracebacks
from ..records.measurement import Status
from .protocol import Failed


class FaultyError(Exception):
    """A point failed for a reason that has a status of its own."""

    def __init__(self, status: Status, error: str) -> None:
        super().__init__(error)
        self.status = status


def failed(error: Exception) -> Failed:
    """Return the answer to a request that raised this exception."""
    if isinstance(error, FaultyError):
        return Failed(status=error.status, error=str(error))
    if isinstance(error, torch.OutOfMemoryError):
        return Failed(status="out_of_memory", error=str(error).split(". ", maxsplit=1)[0])
    folders = [loaded.folder for loaded in loading.known()]
    return Failed(status=classify(error), error=without_colors(tracebacks.described(error, folders)))


def without_colors(text: str) -> str:
    """Remove the escape sequences for colors that some compilers write in their messages."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def classify(error: Exception) -> Status:
    """Return the status for an exception of a provider."""
    name = type(error).__name__
    text = str(error)
    if isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text:
        return "out_of_memory"
    if name in ("CompilationError", "CompileTimeAssertionFailure", "BuildError", "PTXASError") or (
        "inductor" in type(error).__module__ or "dynamo" in type(error).__module__
    ):
        return "compile_error"
    return "runtime_error"
