"""Values that don't change: records, named values, and their digest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from kernel_pipeline.contract import Value
from pipeline.points.limits import IDENTIFIER, MOST, WORD

# For plugins, which nothing here has, Pydantic would read a file of each package that is installed.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "1"


class Record(BaseModel):
    """Base of all records: frozen, and nothing unknown gets in, nor a number that is none. What checks one is
    built when the first is made: a command makes few of all kinds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def line(self) -> bytes:
        """The record as a line of a file of JSON Lines: what is as its default has it is left out."""
        return self.model_dump_json(exclude_defaults=True).encode() + b"\n"


class Values(Mapping[str, Value]):
    """Values by name, in their order, which does not count when two are compared."""

    __slots__ = ("_hash", "_items")

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        self._items: dict[str, Value] = dict(values or {})
        # True == 1: told apart, as JSON tells them apart.
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
        # Made anew: a hash means nothing in another process.
        return Values, (self._items,)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        scalar = core_schema.union_schema(
            [
                core_schema.bool_schema(strict=True),
                core_schema.int_schema(strict=True, ge=-MOST, le=MOST),
                core_schema.str_schema(strict=True, pattern=WORD, max_length=100),
            ]
        )
        name = core_schema.str_schema(pattern=IDENTIFIER, max_length=50)
        of_dict = core_schema.no_info_after_validator_function(
            cls, core_schema.dict_schema(name, scalar, max_length=24)
        )
        return core_schema.json_or_python_schema(
            json_schema=of_dict,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), of_dict]),
            serialization=core_schema.plain_serializer_function_ser_schema(dict),
        )


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
"""Made once: of every row that is read two digests are computed."""


def digest(value: Any) -> str:
    """Sixteen hex digits that identify a JSON-able value."""
    return hashlib.sha256(_ENCODER.encode(value).encode()).hexdigest()[:16]
