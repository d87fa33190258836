"""What a provider imports."""

from __future__ import annotations

import torch


def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x
