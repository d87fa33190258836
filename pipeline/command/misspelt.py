"""Names that nobody knows are said before a command's own modules are imported, which takes the longest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipeline import UserError
from pipeline.command import words as command_words
from pipeline.command.explanation import schema_of
from pipeline.command.options import KernelOptions
from pipeline.command.sentences import fail
from pipeline.command.words import CHOSEN, PIN
from pipeline.points import catalog, plan


def refuse(name: str, written: Sequence[str]) -> None:
    """End a command with a sentence if its words can't be read, or if a kernel that they name lacks one of
    them, where it is about kernels that are there. With a flag the command itself does so: of a multirun the
    jobs before are run, and who asks for the configuration gets it."""
    if any(word.startswith("-") for word in written):
        return
    schema = schema_of(name)
    try:
        given = command_words.read(written, schema).given
        for kernel in _kernels(given) if issubclass(schema, KernelOptions) else ():
            entry = catalog.find(kernel)
            for pin in _values(given, f"++{PIN}."):
                if pin not in plan.names(entry):
                    raise plan.unknown_name(entry, pin, schema.model_fields)
    except UserError as error:
        fail(str(error))


def _kernels(given: Iterable[str]) -> list[str]:
    """The kernels that a command line names, where it names kernels of this repository and no pattern."""
    told = _values(given, f"++{CHOSEN}.").get("kernel", "")
    return told.strip("[]").split(",") if re.fullmatch(r"\[?\w+(,\w+)*\]?", told) else []


def _values(given: Iterable[str], before: str) -> dict[str, str]:
    """The options that Hydra is given below a name, by the rest of theirs."""
    pairs = (word.removeprefix(before).partition("=") for word in given if word.startswith(before))
    return {name: value for name, _, value in pairs}
