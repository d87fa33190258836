"""Read YAML files that others wrote as plain data, without aliases and deep nesting.

Two kilobytes of nested aliases expand to more values than any memory holds as soon as they are compared or
dumped, and deep nesting exhausts Python's stack.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEEPEST = 20
"""Levels of lists and mappings; a sweep's configuration has four."""


def load(text: str) -> Any:
    """Return the data of a YAML document. Raises ValueError with a clause for an alias or deep nesting, and
    PyYAML's error for text that is not YAML."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        line = f"line {event.start_mark.line + 1}" if event.start_mark else "it"
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"{line} has an alias (*{event.anchor})")
        opens, closes = (
            isinstance(event, yaml.CollectionStartEvent),
            isinstance(event, yaml.CollectionEndEvent),
        )
        depth += opens - closes
        if depth > DEEPEST:
            raise ValueError(f"{line} is nested more than {DEEPEST} deep")
    return yaml.safe_load(text)


def is_plain(path: Path) -> bool:
    """Whether ``load`` can read a file."""
    try:
        load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return True
