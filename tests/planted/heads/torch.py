"""Heads times shared keys by torch, and one that forgets all keys but the first."""

from __future__ import annotations

import torch


def shared(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return queries * keys.repeat_interleave(queries.shape[0] // keys.shape[0], dim=0)


def first_head_alone(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return queries * keys[:1]
