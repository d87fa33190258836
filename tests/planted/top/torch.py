"""The largest elements by torch, right and wrong."""

from __future__ import annotations

import torch

Answer = tuple[torch.Tensor, torch.Tensor]


def top(x: torch.Tensor, largest: int) -> Answer:
    values, places = x.topk(largest, dim=1)
    return values, places


def by_sort(x: torch.Tensor, largest: int) -> Answer:
    values, places = x.sort(dim=1, descending=True, stable=True)
    return values[:, :largest].contiguous(), places[:, :largest].contiguous()


def next_place(x: torch.Tensor, largest: int) -> Answer:
    values, places = top(x, largest)
    return values, (places + 1) % x.shape[1]


def twice_the_first(x: torch.Tensor, largest: int) -> Answer:
    """Name the same place for all equal values."""
    values, places = by_sort(x, largest)
    for left, right in zip(range(largest - 1), range(1, largest), strict=True):
        same = values[:, left] == values[:, right]
        places[same, right] = places[same, left]
    return values, places


def out_of_order(x: torch.Tensor, largest: int) -> Answer:
    values, places = top(x, largest)
    return values.flip(1), places.flip(1)


def nothing(x: torch.Tensor, largest: int) -> Answer:
    values, places = top(x, largest)
    return torch.zeros_like(values), torch.zeros_like(places)
