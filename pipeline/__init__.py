"""The experiment pipeline: one module for each command, and the packages that they use.

A user's mistake raises UserError, whose text is the sentence that the user reads.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from kernel_pipeline import files

PACKAGE = __name__

IS_INSTALLED = PACKAGE != "pipeline"
"""Whether this is the package of a wheel, and not the folder of a checkout."""

CODE = Path(__file__).resolve().parent

DATA = CODE / "project" if IS_INSTALLED else CODE.parent
"""The folder with the files that ``new project=`` copies into a project: conf, dvc.yaml, params.yaml."""

ROOT = files.PROJECT or DATA
"""The root of the project: of the user's, or of the repository. Without either ``--help`` reads ``DATA``."""

SCRIPT = "kernel-pipeline"
"""The console script. Its first word is a command's name."""

TYPED = f"{SCRIPT} " if IS_INSTALLED else "python -m pipeline."
"""The beginning of a command line, before the command's name."""


def as_typed(name: str, *words: object) -> str:
    """Return a command line with its words quoted for a shell."""
    return f"{TYPED}{shlex.join([name, *map(str, words)])}"
