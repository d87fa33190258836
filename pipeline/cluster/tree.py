"""What goes along to a cluster's hosts."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import ROOT

PARTS = ("conf", "kernels", "pipeline")


@contextmanager
def packed() -> Iterator[Path]:
    """A copy of the sources alone, as they are now: edits that come later go nowhere."""
    with tempfile.TemporaryDirectory(prefix="kernel-pipeline-tree-") as folder:
        for part in PARTS:
            shutil.copytree(ROOT / part, Path(folder, part), ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(folder)


def locked() -> tuple[str, ...]:
    """The names of the packages that the repository's lock pins; none outside of a checkout."""
    lock = ROOT / "locks" / "runtime.lock"
    text = lock.read_text() if lock.is_file() else ""
    return ("torch", "triton", *re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
