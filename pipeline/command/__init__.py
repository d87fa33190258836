"""Run command lines: Hydra composes conf/, a typed schema checks the result, and a mistake ends in one
sentence.

``run.run_stage`` and ``run.run_each`` start the commands. The first import of this package in a command's
process installs the handling of Ctrl-C and of a failed output. It also answers ``--help`` before the command
imports anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kernel_pipeline import files

from .. import PACKAGE, SCRIPT


def started(process: Sequence[str], program: str) -> str | None:
    """Return the command that a process was started as: ``sweep`` for ``python -m pipeline.sweep``, an empty
    name for ``python -m pipeline`` or ``kernel_pipeline`` and the console script, None for any other process.
    """
    if program.rpartition("/")[2] == SCRIPT:
        return ""
    module = process[process.index("-m") + 1 :][:1] if "-m" in process else []
    if module in ([PACKAGE], [files.__package__]):
        return ""
    package, _, name = "".join(module).rpartition(".")
    return name if package == PACKAGE else None


def _begin(name: str, words: Sequence[str]) -> None:
    from . import interrupt, output

    interrupt.end_on_interrupt()
    output.guard()
    if name and {"--help", "-h"} & set(words):
        from . import explanation

        explanation.show(name, words)


if (_command := started(sys.orig_argv, sys.argv[0])) is not None:
    _begin(_command, sys.argv[1:])
