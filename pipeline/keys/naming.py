"""Decide which names are part of a closure's digest, and number the names that only distinguish things.

A private attribute is identified by its class if it is only ever accessed on ``self``, and otherwise by its
name alone. A parameter's name is part of the digest if a call of an unknown function may pass it by keyword.
If a function is only ever called by its own name, all of its calls are known.

A name stays unchanged if a string could spell it, another project may know it, or code lists names at run
time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .holes import Form, is_private

_PLAIN_BASES = {"object", "ABC", "Protocol", "Generic", "BaseModel", "NamedTuple", "NodeVisitor"}
"""Base classes from outside the roots that require no private name of their subclasses."""

_CALLERS = ("functools", "threading", "multiprocessing", "concurrent", "contextlib", "asyncio", "dict")
"""Modules and builtins from outside the roots that pass their keyword arguments on to other functions."""

Class = tuple[str, str]
"""A class by its module and its name."""


class Attribute(NamedTuple):
    """A private attribute of a class and the classes related to it, or of any object if ``owner`` is None."""

    owner: Class | None
    name: str
    binds: bool


class NamedParameter(NamedTuple):
    """A parameter's name. ``method`` is set for a method, ``function`` for a module-level function; both are
    None for other functions."""

    name: str
    method: str | None
    function: tuple[str, str] | None


class Given(NamedTuple):
    """A keyword argument of a call, and its callee. ``to`` is ``shown`` for a callee that never passes the
    argument on, ``method`` for a method of an unknown object, and ``anywhere`` for other callees."""

    name: str | None
    to: str
    method: str | None = None


@dataclass
class Facts:
    """The uses of names in all reached definitions. ``passed`` are the definitions, by module and name, that
    are not only called."""

    words: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    passed: set[tuple[str, str]] = field(default_factory=set)
    bases: dict[Class, list[Class]] = field(default_factory=dict)
    opaque: set[Class] = field(default_factory=set)

    def add(self, form: Form) -> None:
        """Add the facts of a form."""
        self.words |= form.words
        self.stored |= form.stored
        self.taken |= form.taken
        self.flags |= form.flags

    def add_class(self, made: Class, bases: Sequence[Class], others: Iterable[str]) -> None:
        """Add a class with its bases: the reached classes, and the names of ``others`` from outside the
        roots."""
        self.bases.setdefault(made, []).extend(bases)
        plain = (name in _PLAIN_BASES or name.endswith(("Error", "Exception")) for name in others)
        if not all(plain):
            self.opaque.add(made)


def hands_on(path: str, passes_function: bool) -> bool:
    """Whether a callable of another project may pass its keyword arguments on to a function that is
    reached."""
    return passes_function or path.partition(".")[0] in _CALLERS


class Naming:
    """Replaces each name that a closure left open, by the name itself or by a number in the order of
    definitions."""

    def __init__(self, opened: Collection[object], facts: Facts) -> None:
        self._facts = facts
        self._numbers: dict[object, int] = {}
        self._roots = _roots(facts.bases)
        self._opaque = {self._roots.get(one, one) for one in facts.opaque}
        attributes = [one for one in opened if isinstance(one, Attribute)]
        self._wild = {one.name for one in attributes if one.owner is None}
        self._binding = {self._attribute_key(one) for one in attributes if one.binds}
        of_others = {one.name for one in attributes if one.owner and self._root(one.owner) in self._opaque}
        self._literal = self._wild & of_others
        self._prefixes = tuple(flag for flag in facts.flags if flag.startswith("_"))
        parameters = [one for one in opened if isinstance(one, NamedParameter)]
        self._methods = {(one.method, one.name) for one in parameters}
        escaping = {one.name for one in parameters if self._escapes(one)}
        given = [one for one in opened if isinstance(one, Given) and one.to != "shown"]
        shown = {one.name for one in opened if isinstance(one, Given) and one.to == "shown"}
        self._kept: set[str] = set()
        self._anywhere: set[str] = set()
        self._to_methods: set[tuple[str | None, str]] = set()
        for one in given:
            if self._is_to_method(one):
                names = facts.words if one.name is None else {one.name}
                self._to_methods |= {(one.method, name) for name in names}
            elif one.name is None:
                self._kept |= facts.words
            elif one.name in escaping - shown:
                self._anywhere.add(one.name)
            else:
                self._kept.add(one.name)

    def symbol(self, one: Attribute | Given | NamedParameter) -> object:
        """Return the text or number that stands for a name in the digest."""
        match one:
            case Attribute():
                return one.name if self._is_kept(one) else self._number(self._attribute_key(one))
            case NamedParameter(name=name, method=method):
                escapes = self._escapes(one)
                return [
                    name if escapes and name in self._kept else None,
                    self._number((method, name)) if (method, name) in self._to_methods else None,
                    self._number(("", name)) if escapes and name in self._anywhere else None,
                ]
            case Given(name=str(name)) if one.to != "shown" and self._is_to_method(one):
                return self._number((one.method, name))
            case Given(name=str(name)) if one.to != "shown" and name in self._anywhere - self._kept:
                return self._number(("", name))
        return one.name

    def label(self, name: str) -> str | None:
        """Return a definition's name if code may see it at run time, else None."""
        seen = "globals" in self._facts.flags or ("names" in self._facts.flags and not is_private(name))
        return name if seen else None

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _root(self, owner: Class) -> Class:
        return self._roots.get(owner, owner)

    def _attribute_key(self, one: Attribute) -> tuple[Class | None, str]:
        return (None if one.owner is None or one.name in self._wild else self._root(one.owner)), one.name

    def _is_kept(self, one: Attribute) -> bool:
        key = self._attribute_key(one)
        return (
            key not in self._binding
            or one.name in self._facts.words | self._literal
            or key[0] in self._opaque
            or "attributes" in self._facts.flags
            or one.name.startswith(self._prefixes)
        )

    def _escapes(self, one: NamedParameter) -> bool:
        """Whether a function may be called by another name than its own."""
        if one.function is not None:
            return one.function in self._facts.passed
        method = one.method
        return method is None or method.endswith("__") or method in self._facts.taken | self._facts.stored

    def _is_to_method(self, one: Given) -> bool:
        """Whether a keyword argument is passed to a reached method whose name is never assigned as an
        attribute."""
        if one.to != "method" or one.method in self._facts.stored:
            return False
        return one.name is None or (one.method, one.name) in self._methods


def _roots(bases: Mapping[Class, Sequence[Class]]) -> dict[Class, Class]:
    """Return for each class a representative of all classes related to it."""
    roots: dict[Class, Class] = {}

    def root(one: Class) -> Class:
        while (above := roots.get(one, one)) != one:
            one = above
        return one

    for made, above in bases.items():
        for base in above:
            roots[root(base)] = root(made)
    return {one: root(one) for one in [*bases, *(base for above in bases.values() for base in above)]}
