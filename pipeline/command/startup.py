"""What a command does before its own modules are imported, which takes the longest."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from pipeline.command import interrupt

SCRIPT = "kernel-pipeline"
"""The console script, which takes a command's name as its first word."""

CONF = Path(__file__).parents[2] / "conf"

UNCOLLECTED = 50_000
"""New objects before Python looks for garbage, of which imports leave next to none. To look after every 700
took 30 ms of the 480 that a misspelt option took at f271c01, on two cores of an AMD EPYC."""


def begun(process: Sequence[str], program: str, words: Sequence[str]) -> str | None:
    """The name of the command that somebody typed as ``python -m pipeline.NAME``, empty for ``python -m
    pipeline`` and the console script; None for any other process.

    From here on Ctrl-C ends a command with a line, and so does standard output that can't be written. With
    ``--help`` among its words it prints that, and ends; with a name among them that nobody knows it says so,
    and ends.
    """
    name = _name(list(process), program)
    if name is None:
        return None
    from pipeline.command import output

    interrupt.heeded()
    output.guard()
    gc.set_threshold(UNCOLLECTED)
    if name and {"--help", "-h"} & set(words):
        from pipeline.command import explanation

        explanation.show(name, words)
    if name and (CONF / f"{name}.yaml").is_file():
        from pipeline.command import misspelt

        misspelt.refuse(name, words)
    return name


def _name(process: list[str], program: str) -> str | None:
    if program.rpartition("/")[2] == SCRIPT:
        return ""
    module = process[process.index("-m") + 1 :][:1] if "-m" in process else []
    package, _, name = "".join(module).partition(".")
    return name if package == "pipeline" and "." not in name else None
