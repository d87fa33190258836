"""Run every command by one name: ``kernel-pipeline sweep kernel=softmax`` is the same as
``python -m pipeline.sweep kernel=softmax``.

Without a command, print the list of commands. In a shell that has run
``eval "$(kernel-pipeline -sc install=bash)"`` the tab key completes commands, options and the names of
presets and experiments.
"""

from __future__ import annotations

import os
import runpy
import sys

from kernel_pipeline import files
from kernel_pipeline.errors import UserError, unknown

from . import PACKAGE, SCRIPT, TYPED
from .command import explanation
from .command.errors import fail
from .command.words import COMPLETION

NO_PROJECT = (
    "no project is here: neither this folder nor one above it has params.yaml and conf/sweep.yaml. "
    f"{SCRIPT} new project=DIR makes a project in the folder DIR; run the command there."
)

LINE = "COMP_LINE"
"""The variable in which a shell passes the line to complete."""


def main() -> None:
    """Run the command that the first word names, with the other words."""
    words = sys.argv[1:]
    try:
        if COMPLETION & set(words[:1]):
            complete(words)
        elif not words or {"--help", "-h"} & set(words[:1]):
            print(overview())
        elif {"--help", "-h"} & set(words):
            explanation.show(words[0], words[1:])
        else:
            run(words[0], words[1:])
    except UserError as error:
        fail(str(error))


def overview() -> str:
    """Return the list of commands, one in a line."""
    lines = [f"  {name:<15} {first}" for name, first in explanation.commands().items()]
    return "\n".join(
        [
            ", or ".join(f"{way}COMMAND OPTION=VALUE ..." for way in dict.fromkeys((f"{SCRIPT} ", TYPED))),
            "",
            "Commands:",
            *lines,
            "",
            f"{SCRIPT} COMMAND --help says what a command does and takes.",
            f'eval "$({SCRIPT} -sc install=bash)" in bash makes the Tab key complete words.',
        ]
    )


def run(name: str, words: list[str], program: str | None = None) -> None:
    """Run a command in this process. Raises UserError for an unknown command."""
    known = explanation.names()
    if name not in known:
        raise unknown("command", name, known)
    makes_one = name == "new" and any(word.startswith("project=") for word in words)
    if files.PROJECT is None and not makes_one:
        raise UserError(NO_PROJECT)
    sys.argv = [program or f"{PACKAGE}.{name}", *words]
    runpy.run_module(f"{PACKAGE}.{name}", run_name="__main__", alter_sys=program is None)


def complete(words: list[str]) -> None:
    """Answer a shell's completion. Hydra completes the options of the command that the line names."""
    line = os.environ.get(LINE, "")
    _, _, rest = line.partition(" ")
    name, blank, options = rest.lstrip().partition(" ")
    known = explanation.names()
    if line and not blank:
        print(" ".join(one for one in known if one.startswith(name)))
    elif not line or name in known:
        os.environ[LINE] = f"{SCRIPT} {options}"
        run(name if line else "sweep", words, SCRIPT)


if __name__ == "__main__":
    main()
