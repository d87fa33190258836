"""Command lines: Hydra composes conf/, a typed schema checks it, a mistake ends in one sentence.

``run.run_stage`` starts every command. The first import of this package in a command's process sets up how
the process ends, and answers ``--help`` before the command imports anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

SCRIPT = "kernel-pipeline"
"""The console script, which takes a command's name as its first word."""


def started(process: Sequence[str], program: str) -> str | None:
    """The command that a process was started as: ``sweep`` for ``python -m pipeline.sweep``, an empty name
    for ``python -m pipeline`` and the console script, None for any other process."""
    if program.rpartition("/")[2] == SCRIPT:
        return ""
    module = process[process.index("-m") + 1 :][:1] if "-m" in process else []
    package, _, name = "".join(module).partition(".")
    return name if package == "pipeline" and "." not in name else None


def _begin(name: str, words: Sequence[str]) -> None:
    from pipeline.command import interrupt, output

    interrupt.end_on_interrupt()
    output.guard()
    if name and {"--help", "-h"} & set(words):
        from pipeline.command import explanation

        explanation.show(name, words)


if (_command := started(sys.orig_argv, sys.argv[0])) is not None:
    _begin(_command, sys.argv[1:])
