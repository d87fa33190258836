"""Compile the C++ and CUDA providers ahead of the first call: ``python -m kernel_pipeline.ops.build
[KERNEL...]``.

It prints a line for each source. The exit code is 1 if a source could not be built, and 2 for an unknown
kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import monotonic

from .. import loading, ops
from . import native


def main(words: Sequence[str]) -> int:
    """Build all sources of the named kernels, or of all kernels. Return the exit code."""
    if unknown := [word for word in words if word not in ops.names()]:
        print(
            f"error: {unknown[0]} is not a kernel; the kernels are {', '.join(ops.names())}.", file=sys.stderr
        )
        return 2
    failed = False
    for name in words or ops.names():
        loaded = loading.load(name)
        for source in dict.fromkeys(one.extension for one in loaded.kernel.providers if one.extension):
            begun = monotonic()
            try:
                print(f"{name}/{source}: {native.library(loaded, source)}, {monotonic() - begun:.1f} s")
            except native.NotThereError as error:
                print(f"{name}/{source}: {error}")
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
