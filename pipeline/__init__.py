"""How kernels are measured: a command a file here, an idea a package below.

A mistake of the user is a UserError, whose text is the sentence that the user reads.
"""

from __future__ import annotations

import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""


def as_typed(name: str, *words: object) -> str:
    """A command line with its words quoted for a shell."""
    return shlex.join(["python", "-m", f"pipeline.{name}", *map(str, words)])
