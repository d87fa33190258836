"""The command ``kernel-pipeline`` or ``python -m kernel_pipeline``: ``bench``, and the pipeline's
commands."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

PIPELINE = f"{__package__}.pipeline" if Path(__file__).with_name("pipeline").is_dir() else "pipeline"
"""The package of the other commands: inside this package in an installation, beside it in a checkout."""

WITHOUT_EXTRA = (
    "the pipeline's commands need packages that are not installed: pip install '.[pipeline]' in a checkout. "
    "Without them there is kernel-pipeline bench FILE.py:FUNCTION --shape 4096,781."
)


def main() -> None:
    """Run the command that the first argument names. If the reader of the output closes it, as ``head`` does,
    end without a word, with the exit code of SIGPIPE."""
    try:
        try:
            run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest at its end
        sys.exit(128 + signal.SIGPIPE)


def run() -> None:
    """Run the command. Without the packages of the extra ``pipeline``, commands other than ``bench`` print an
    error and exit with 2."""
    if sys.argv[1:2] == ["bench"]:
        from .shell import main as bench

        sys.exit(bench(sys.argv[2:]))
    if sys.argv[1:] == ["--version"]:
        print(f"kernel-pipeline {metadata.version('kernel-pipeline')}")
        return
    if find_spec("hydra") is None:
        print(f"error: {WITHOUT_EXTRA}", file=sys.stderr)
        sys.exit(2)
    import_module(f"{PIPELINE}.__main__").main()


if __name__ == "__main__":
    main()
