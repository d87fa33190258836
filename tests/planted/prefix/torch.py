"""Sums and means over rows by torch."""

from __future__ import annotations

import torch


def prefix(x: torch.Tensor, mode: str, causal: bool) -> torch.Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    sums = wide.cumsum(dim=1) if causal else wide.sum(dim=1, keepdim=True).expand_as(wide)
    return (sums / _counts(x, causal) if mode == "mean" else sums).to(x.dtype).contiguous()


def ways(
    x: torch.Tensor, *, mode: str, causal: bool, strategy: str, reverse: bool, chunk: int
) -> torch.Tensor:
    assert isinstance(reverse, bool) and isinstance(causal, bool) and chunk in {8, 16}
    if strategy == "scan":
        return prefix(x, mode, causal)
    columns = x.shape[1]
    ones = torch.ones(columns, columns)
    sums = x.float() @ (ones.triu() if causal else ones)
    return (sums / _counts(x, causal) if mode == "mean" else sums).to(x.dtype)


def never_causal(x: torch.Tensor, mode: str, causal: bool) -> torch.Tensor:
    return prefix(x, mode, False)


def _counts(x: torch.Tensor, causal: bool) -> torch.Tensor:
    columns = x.shape[1]
    return torch.arange(1, columns + 1) if causal else torch.full((columns,), columns)
