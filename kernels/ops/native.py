"""C++ and CUDA sources of providers, built once and loaded."""

from __future__ import annotations

import re

from kernels import Loaded


class NotThereError(Exception):
    """A provider that can't be called here; the text is a sentence that says why."""


def load(loaded: Loaded, source: str) -> None:
    """Build a source's library where it is missing, and load it, unless its operators are there already.

    Raises NotThereError with a sentence where that can't be done.
    """
    import torch

    defined = re.findall(r'm\.def\(\s*"(\w+)\(', (loaded.folder / source).read_text())
    if defined and all(hasattr(getattr(torch.ops, loaded.name), name) for name in defined):
        return
    raise NotThereError(f"{loaded.name}/{source} is not built.")
