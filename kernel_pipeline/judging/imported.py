"""The list of a kernel's folder that was made from others' files: ``imported.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..declared import Value
from ..records.base import Record, Values
from ..records.fields import Name, Text

FILE = "imported.json"

DISTRIBUTION = "distribution"
"""The name of the dimension that gives the distribution of a problem's inputs."""

RENAMED = f"{DISTRIBUTION}_"
"""The name that a dimension ``distribution`` of a problem's own gets."""

ABSENT = "absent"
"""The word of a dimension that a workload does not have."""

REFERENCE, COMPILED = "reference", "torch_compile"
"""The providers beside the submissions: the problem's own code, eager and compiled by ``torch.compile``."""


class ModuleFile(Record):
    """The function or module that a provider runs, and its file in the folder."""

    file: Text
    name: Name
    language: Name = "torch"
    compiled: bool = False


class ImportedFiles(Record):
    """The contents of a folder.

    code:
        The class of this package that runs the files, as ``module.Class``.
    workloads:
        All workloads of the problem.
    literals:
        The dimensions whose words are values in JSON.
    has_checker, has_answer:
        Whether the problem has a checker of its own, and whether outputs are compared with its answer.
    has_own_check:
        Whether the check of the format's own judge is known.
    modules:
        The providers.
    originals:
        The paths of the files that were copied, by their paths in the folder.
    """

    code: Text
    workloads: tuple[Values, ...]
    literals: tuple[Name, ...] = ()
    has_checker: bool = False
    has_answer: bool = True
    has_own_check: bool = False
    modules: dict[Name, ModuleFile]
    originals: dict[Text, Text]

    def plain(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Return the values of a workload as the problem's files have them."""
        made: dict[str, Any] = {}
        for name, value in values.items():
            if name in self.literals:
                if value != ABSENT:
                    made[DISTRIBUTION if name == RENAMED else name] = json.loads(str(value))
            elif name != DISTRIBUTION:
                made[name] = value
        return made


@cache
def read(folder: Path) -> ImportedFiles:
    """Return a folder's ``imported.json``."""
    return ImportedFiles.from_json((folder / FILE).read_bytes())


def worded(workloads: Sequence[Mapping[str, Any]]) -> tuple[tuple[Values, ...], tuple[str, ...]]:
    """Return workloads as values of dimensions, and the dimensions whose words are values in JSON.

    A dimension has such words if some workloads lack it, or if its values are not whole numbers from 1 on,
    finite numbers, flags or words.

    Raises ValueError, with a clause, for a value that is too long.
    """
    names = {RENAMED if name == DISTRIBUTION else name: name for one in workloads for name in one}
    literals = tuple(
        name
        for name, own in names.items()
        if name == RENAMED or not _is_plain([one.get(own) for one in workloads])
    )

    def word(own: str, one: Mapping[str, Any]) -> str:
        return json.dumps(one[own]) if own in one else ABSENT

    return tuple(
        Values.checked(
            {name: word(own, one) if name in literals else one[own] for name, own in names.items()}
        )
        for one in workloads
    ), literals


def _is_plain(values: Sequence[Any]) -> bool:
    kinds = {type(value) for value in values}
    sizes = [value for value in values if type(value) is int]
    is_finite = all(math.isfinite(value) for value in values if isinstance(value, float))
    is_plain = len(kinds) == 1 and kinds <= {int, bool, str, float}
    return is_plain and is_finite and all(value > 0 for value in sizes)
