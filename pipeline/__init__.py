"""The experiment pipeline: one module for each command, and the packages that they use.

A user's mistake raises UserError, whose text is the sentence that the user reads.
"""

from __future__ import annotations

import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The root of the repository."""


def as_typed(name: str, *words: object) -> str:
    """Return a command line with its words quoted for a shell."""
    return shlex.join(["python", "-m", f"pipeline.{name}", *map(str, words)])
