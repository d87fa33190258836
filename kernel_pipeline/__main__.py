"""The command ``kernel-pipeline`` or ``python -m kernel_pipeline``: ``bench``, and the pipeline's
commands."""

from __future__ import annotations

import importlib.util
import sys

INSTALLED = (
    "the pipeline's other commands need a checkout of the repository, and this is an installation of the "
    "library: write kernel-pipeline bench FILE.py:FUNCTION --shape 4096,781, import kernel_pipeline, or "
    "compile its kernels by python -m kernel_pipeline.ops.build."
)


def main() -> None:
    """Run the command that the first argument names. Without a checkout, commands other than ``bench`` print
    an error and exit with 2."""
    if sys.argv[1:2] == ["bench"]:
        from .shell import main as bench

        sys.exit(bench(sys.argv[2:]))
    if importlib.util.find_spec("pipeline") is None:
        print(f"error: {INSTALLED}", file=sys.stderr)
        sys.exit(2)
    from pipeline.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
