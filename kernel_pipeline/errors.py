"""Errors that tell users what to correct."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can correct. Its text says what is wrong and what to write instead."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for an unknown name; it suggests the most similar known name."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {what} '{name}'.{hint} Known: {', '.join(known) or 'none'}.")
