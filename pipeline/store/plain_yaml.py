"""YAML from files that others wrote: read as plain data, with no aliases and no deep nesting.

Two kilobytes of aliases of aliases stand for more values than any memory holds, and a comparison or a dump
visits them all; a list in a list in a list ends Python's stack.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEEPEST = 20
"""Levels of lists and mappings; a sweep's configuration has four."""


def load(text: str) -> Any:
    """The data of a YAML document. Raises ValueError with a clause for what is not plain, and what PyYAML
    raises for what is no YAML."""
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
    """Whether a file is one that ``load`` reads."""
    try:
        load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return True
