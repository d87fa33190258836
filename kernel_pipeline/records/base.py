"""Immutable values: records, named values, and their digests.

A record is validated when it is created, in Python or from JSON: the types and limits of its fields, unknown
fields, and the conditions in its ``__post_init__``. Only ``replace`` validates nothing.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Self, dataclass_transform, get_args, get_origin

import msgspec
from msgspec import ValidationError
from msgspec.structs import force_setattr

from ..declared import INTEGER_LIMIT, Value
from .fields import Changed, Rounded, is_printable

__all__ = ["Record", "ValidationError", "Values", "digest"]

MOST_VALUES = 24
MOST_NAME = 50
MOST_WORD = 100
MOST_LIST = 256

Change = Callable[[Any], Any]


class _RecordType(msgspec.StructMeta):
    """Makes records frozen and strict, and validates records created in Python like those read from JSON."""

    if not TYPE_CHECKING:

        def __new__(cls, name, bases, namespace, **config):
            config = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True, **config}
            return super().__new__(cls, name, bases, namespace, **config)

        def __call__(cls, **values):  # noqa: N805
            for name, change in _changes(cls, Rounded):
                if name in values:
                    values[name] = change(values[name])
            _refuse_nonfinite(values)
            return msgspec.convert(values, cls, dec_hook=_from_plain)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, kw_only=True, metaclass=_RecordType):
    """The base of all records: frozen, without unknown fields and without non-finite numbers."""

    def __post_init__(self) -> None:
        for name, change in _changes(type(self), Changed):
            value = getattr(self, name)
            changed = change(value)
            if changed is not value:
                force_setattr(self, name, changed)

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the record for plain data. Raises ValidationError if the data are invalid."""
        _refuse_nonfinite(values)
        return msgspec.convert(values, cls, dec_hook=_from_plain)

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Return the record for a JSON text. Raises ValidationError if the text is invalid."""
        try:
            found: Self = _decoder(cls).decode(text)
            return found
        except ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            # Python's parser accepts some texts that msgspec's does not, such as lone surrogates.
            try:
                return cls.from_dict(json.loads(text))
            except (ValueError, RecursionError) as error:
                raise ValidationError(str(error)) from error

    def to_dict(self, exclude: Collection[str] = (), defaults: bool = True) -> dict[str, Any]:
        """Return the record as plain data with JSON's types. Without ``defaults`` omit fields that have their
        default value."""
        names = [name for name in self.__struct_fields__ if name not in exclude]
        if not defaults:
            usual = _defaults(type(self))
            names = [name for name in names if name not in usual or getattr(self, name) != usual[name]]
        return {name: _plain(getattr(self, name), defaults) for name in names}

    def to_json(self, indent: int = 0, exclude: Collection[str] = ()) -> bytes:
        """Return the record as JSON, on one line or indented."""
        text = msgspec.json.encode(self.to_dict(exclude))
        return msgspec.json.format(text, indent=indent) if indent else text

    def line(self) -> bytes:
        """Return the record as a line of a JSON Lines file, without fields that have their default value."""
        return msgspec.json.encode(self.to_dict(defaults=False)) + b"\n"

    def replace(self, **changes: Any) -> Self:
        """Return the record with other values for some fields; the values are not validated."""
        changed = copy.copy(self)
        for name, value in changes.items():
            force_setattr(changed, name, value)
        return changed


class Values(Mapping[str, Value]):
    """An immutable, hashable mapping of names to values. It keeps their order and ignores it in
    comparisons."""

    __slots__ = ("_hash", "_items")

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        self._items: dict[str, Value] = dict(values or {})
        # The type distinguishes True from 1, as JSON does.
        self._hash = hash(frozenset((name, type(v), v) for name, v in self._items.items()))

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and self._hash == other._hash and self._items == other._items

    def __repr__(self) -> str:
        return f"Values({self._items})"

    def __reduce__(self) -> tuple[type[Values], tuple[dict[str, Value]]]:
        # A hash is not valid in another process, so pickle creates the object anew.
        return Values, (self._items,)

    @classmethod
    def checked(cls, values: Any) -> Values:
        """Return a mapping as validated values. Raises ValueError if it is invalid."""
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping) or len(values) > MOST_VALUES:
            raise ValueError(f"must be at most {MOST_VALUES} values by name, not {values!r}")
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        for name, value in values.items():
            if not (isinstance(name, str) and name.isidentifier() and len(name) <= MOST_NAME):
                raise ValueError(f"{name!r} can't be the name of a value")
            is_word = type(value) is str and len(value) <= MOST_WORD and is_printable(value)
            numbers = value if type(value) is tuple and 0 < len(value) <= MOST_LIST else (value,)
            is_number = all(type(one) is int and abs(one) <= INTEGER_LIMIT for one in numbers)
            is_real = type(value) is float and math.isfinite(value)
            if not (is_word or is_number or is_real or type(value) is bool):
                raise ValueError(
                    f"{name} must be a flag, a number, a short list of numbers or a short word, not {value!r}"
                )
        return cls(values)


def _from_plain(kind: Any, value: Any) -> Any:
    """Convert plain data to a type that msgspec does not support."""
    if kind is Values:
        return Values.checked(value)
    if kind is Path and isinstance(value, (str, Path)):
        return Path(value)
    raise NotImplementedError(f"records hold no {kind}")


def _plain(value: Any, defaults: bool) -> Any:
    if isinstance(value, Record):
        return value.to_dict(defaults=defaults)
    if isinstance(value, (list, tuple)):
        return [_plain(one, defaults) for one in value]
    if isinstance(value, Mapping):
        return {name: _plain(one, defaults) for name, one in value.items()}
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return msgspec.to_builtins(value)


def _refuse_nonfinite(value: Any) -> None:
    """Raise ValidationError for an infinite number or NaN, which JSON can't represent."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValidationError(f"{value} is not a finite number")
    elif isinstance(value, dict):
        for one in value.values():
            _refuse_nonfinite(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _refuse_nonfinite(one)


@cache
def _decoder(kind: type[Record]) -> Any:
    return msgspec.json.Decoder(kind, dec_hook=_from_plain)


@cache
def _defaults(kind: type[Record]) -> dict[str, Any]:
    fields = msgspec.structs.fields(kind)
    fixed = {one.name: one.default for one in fields if one.default is not msgspec.NODEFAULT}
    return fixed | {
        one.name: one.default_factory() for one in fields if one.default_factory is not msgspec.NODEFAULT
    }


@cache
def _changes(kind: type[Record], marker: type[Changed | Rounded]) -> tuple[tuple[str, Change], ...]:
    """Return the fields of a record type whose values are changed at creation, with the change of each."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = ((name, _change(hints[name], marker)) for name in kind.__struct_fields__)
    return tuple((name, change) for name, change in found if change is not None)


def _change(hint: Any, marker: type[Changed | Rounded]) -> Change | None:
    """Return the function that applies a type hint's markers to a value; None if it has no markers."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        own = [one for one in hint.__metadata__ if isinstance(one, marker)]
        return own[0] if own else _change(inner[0], marker)
    changes = [_change(one, marker) for one in inner]
    if not any(changes):
        return None
    if origin is dict:
        name, value = (change or _same for change in changes)
        return lambda field: {name(k): value(v) for k, v in field.items()}
    if origin is tuple and inner[-1] is ...:
        every = changes[0] or _same
        return lambda field: tuple(map(every, field)) if isinstance(field, (list, tuple)) else field
    if origin is tuple:
        each = [change or _same for change in changes]
        return lambda field: tuple(change(one) for change, one in zip(each, field, strict=True))
    if origin in (typing.Union, UnionType) and len(inner) == 2 and type(None) in inner:
        some = changes[0] or changes[1] or _same
        return lambda field: None if field is None else some(field)
    raise TypeError(f"a record can't change values of {hint}")


def _same(value: Any) -> Any:
    return value


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
"""A shared encoder for speed: reading a row computes two digests."""


def digest(value: Any) -> str:
    """Return the SHA-256 digest of a JSON-serialisable value, shortened to sixteen hexadecimal digits."""
    return hashlib.sha256(_ENCODER.encode(value).encode()).hexdigest()[:16]
