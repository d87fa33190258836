"""How kernels are measured: a command a file here, an idea a package below.

A mistake of the user is a UserError, whose text is the sentence that the user reads.
"""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from pipeline.command import startup

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""


class UserError(Exception):
    """Something the user can put right; its text says what is wrong and what to write instead."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not among the known ones, with the nearest one if there is any."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {what} '{name}'.{hint} Known: {', '.join(known) or 'none'}.")


def as_typed(name: str, *words: object) -> str:
    """A command as a shell takes it, whatever is in its words."""
    return shlex.join(["python", "-m", f"pipeline.{name}", *map(str, words)])


COMMAND = startup.begun(sys.orig_argv, sys.argv[0], sys.argv[1:])
"""The command that this process is, where somebody typed one."""
