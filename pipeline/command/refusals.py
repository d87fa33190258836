"""What Hydra refuses of a command line, as one sentence: what is wrong, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml
from hydra.errors import MissingConfigException, OverrideParseException

from pipeline import unknown
from pipeline.command.sentences import options
from pipeline.command.words import CHOSEN, CONF, PIN
from pipeline.points.frozen import Record


def explain(error: Exception, schema: type[Record], written: Mapping[str, str]) -> str:
    """What an error of Hydra's means for the user, as one sentence; ``written`` are the user's words for
    those that Hydra was given."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"can't read {mark.name}, line {mark.line + 1}: {error.problem}."
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return str(unknown(group, name, sorted(error.options)))
    if isinstance(error, OverrideParseException):
        word = written.get(str(error.override), _as_written(str(error.override)))
        return f"can't read '{word}': write OPTION=VALUE or OPTION=[VALUE,VALUE]."
    return _of_hydra(_as_written(str(error)), schema)


def _of_hydra(text: str, schema: type[Record]) -> str:
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)=(.+)'", text):
        return _several(match[1], match[2])
    if match := re.search(r"You must specify '([^']+)'", text):
        known = ", ".join(sorted(re.findall(r"^\t(\S+)$", text, re.MULTILINE)))
        return f"{match[1]} is missing: write {match[1]}=NAME with one of {known}."
    if match := re.search(r"Could not (?:override|append to|delete)[^']*'?([\w.@/-]+)'?", text):
        name = match[1]
        known_options = options(schema, name.split(".")[:-1]) or options(schema)
        if name in known_options:
            return f"{name} takes no mapping here; write {name}=VALUE."
        return str(unknown("option", name, known_options))
    if match := re.search(r"(.+)\s+full_key: (\S+)", text):
        return f"{match[2]}: {match[1].strip()}."
    return " ".join(text.split())


def _as_written(text: str) -> str:
    """A text of Hydra's with the user's words in place of those that were handed to it."""
    return re.sub(rf"(?:\+\+|(?<=full_key: ))(?:{PIN}|{CHOSEN})\.(?=\w)", "", text)


def _several(name: str, value: str) -> str:
    """What to write in place of several values where one is taken."""
    value = value.replace("'", "") if (CONF / name).is_dir() else value
    return (
        f"{name}={value} is several values: write one, or -m {name}={value} to run the command once for each."
    )
