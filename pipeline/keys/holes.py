"""The form of a statement: a digest of everything but its names, and the names that fill its holes."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .syntax import Import


class Name(NamedTuple):
    """A module-level name or a builtin, with the attributes accessed on it. ``is_called`` says that it is
    only called."""

    names: tuple[str, ...]
    is_called: bool = False


class Imported(NamedTuple):
    """The target of an import inside a statement, with the attributes accessed on it."""

    statement: Import
    attributes: tuple[str, ...] = ()


class ByString(NamedTuple):
    """A module that is imported by a name in a string."""

    name: str


class Private(NamedTuple):
    """A private attribute. ``owner`` is the class of this module in whose method it is accessed on ``self``,
    None if the object may be any. ``binds`` says that it gets a value here."""

    owner: str | None
    name: str
    binds: bool = False


class Parameter(NamedTuple):
    """A parameter's name, which matters to calls by keyword. ``method`` is set for a method, ``function`` for
    a function at the module's top level; both are None for other functions."""

    name: str
    method: str | None
    function: str | None


class Keyword(NamedTuple):
    """The name of a keyword argument in a call, None for ``**``. ``callee`` is the name that is called,
    ``method`` the method of some object; both are None for other callees. ``given`` are the names passed by
    position: one of them may be a function that gets the keyword in the end."""

    name: str | None
    callee: Name | Imported | None
    method: str | None
    given: tuple[tuple[str, ...], ...]


Hole = Name | Imported | ByString | Private | Parameter | Keyword


@dataclass(frozen=True)
class Form:
    """A statement's form: a digest of everything but its holes, and the holes in order.

    ``words`` are the strings in it that could be names, ``texts`` all strings and attribute names, ``stored``
    the attributes that get a value, and ``taken`` the attributes that are read and not called at once.
    ``flags`` say which names the statement can see at run time: ``attributes`` of objects, ``globals``, or
    ``names`` of classes and functions. A flag that begins with an underscore is the start of an f-string,
    which may build a private name.
    """

    digest: str
    holes: tuple[Hole, ...]
    words: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    taken: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()

    @classmethod
    def joined(cls, kind: str, forms: Sequence[Form]) -> Form:
        """Join several forms into one, in their order."""
        return cls(
            digest_of([kind, *(form.digest for form in forms)]),
            tuple(hole for form in forms for hole in form.holes),
            frozenset().union(*(form.words for form in forms)),
            frozenset().union(*(form.texts for form in forms)),
            frozenset().union(*(form.stored for form in forms)),
            frozenset().union(*(form.taken for form in forms)),
            frozenset().union(*(form.flags for form in forms)),
        )


def digest_of(value: object) -> str:
    """Return a digest of a JSON-serializable value, as 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()[:16]


def chain(node: ast.expr) -> tuple[str, ...] | None:
    """Return a name and the attributes accessed on it, as in ``a.b.c``; None for any other expression."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=value, attr=attribute):
            names = chain(value)
            return None if names is None else (*names, attribute)
    return None


def is_private(name: str) -> bool:
    """Whether a name is private: it begins with an underscore, but does not end with an underscore as
    ``__init__`` does."""
    return name.startswith("_") and not name.endswith("_")
