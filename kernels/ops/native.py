"""C++ and CUDA sources of providers, built once and loaded."""

from __future__ import annotations

from kernels import Loaded


class NotThereError(Exception):
    """A provider that can't be called here; the text is a sentence that says why."""


def load(loaded: Loaded, source: str) -> None:
    """Build a source's library where it is missing, and load it."""
    raise NotThereError(f"{loaded.name}/{source} is not built.")
