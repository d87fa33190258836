"""How kernels are measured: a command a file here, an idea a package below.

A mistake of the user is a UserError, whose text is the sentence that the user reads.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""


class UserError(Exception):
    """A mistake that the user can correct. Its text says what is wrong and what to write instead."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not among the known ones; it suggests the nearest known name."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {what} '{name}'.{hint} Known: {', '.join(known) or 'none'}.")


def as_typed(name: str, *words: object) -> str:
    """A command line with its words quoted for a shell."""
    return shlex.join(["python", "-m", f"pipeline.{name}", *map(str, words)])
