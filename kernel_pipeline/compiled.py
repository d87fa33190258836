"""``torch.compile`` for providers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.compile(function)``, which recompiles for each shape."""
    import torch
    import torch._dynamo

    # By default Dynamo falls back to eager mode after 8 shapes, and a sweep would time that.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 2**20
    compiled_function: Callable[..., Any] = torch.compile(function, dynamic=False, fullgraph=True)
    return compiled_function
