"""The console script ``kernel-pipeline``: the pipeline's commands, which a checkout of the repository has."""

from __future__ import annotations

import importlib.util
import sys

INSTALLED = (
    "the pipeline's commands need a checkout of the repository, and this is an installation of its kernels: "
    "import kernel_pipeline.ops, or compile them by python -m kernel_pipeline.ops.build."
)


def main() -> None:
    """Run the pipeline's command that the first argument names. Without a checkout, list what is
    installed."""
    if importlib.util.find_spec("pipeline") is None:
        print(f"error: {INSTALLED}", file=sys.stderr)
        sys.exit(2)
    from pipeline.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
