"""What a command does before its own modules are imported, which takes the longest."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.command import interrupt

SCRIPT = "kernel-pipeline"
"""The console script, which takes a command's name as its first word."""


def begun(process: Sequence[str], program: str, words: Sequence[str]) -> str | None:
    """The name of the command that somebody typed as ``python -m pipeline.NAME``, empty for ``python -m
    pipeline`` and the console script; None for any other process.

    From here on Ctrl-C ends a command with a line. With ``--help`` among its words it prints that, and ends.
    """
    name = _name(list(process), program)
    if name is None:
        return None
    interrupt.heeded()
    if name and {"--help", "-h"} & set(words):
        from pipeline.command import explanation

        explanation.show(name, words)
    return name


def _name(process: list[str], program: str) -> str | None:
    if program.rpartition("/")[2] == SCRIPT:
        return ""
    module = process[process.index("-m") + 1 :][:1] if "-m" in process else []
    package, _, name = "".join(module).partition(".")
    return name if package == "pipeline" and "." not in name else None
