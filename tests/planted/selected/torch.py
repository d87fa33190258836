"""Positive elements by torch, right and wrong."""

from __future__ import annotations

import torch

Answer = tuple[torch.Tensor, torch.Tensor]


def positive(x: torch.Tensor) -> Answer:
    return x[x > 0], (x > 0).nonzero().flatten()


def by_nonzero(x: torch.Tensor) -> Answer:
    places = (x > 0).nonzero().flatten()
    return x[places], places


def last_left_out(x: torch.Tensor) -> Answer:
    values, places = positive(x)
    return values[:-1].clone(), places[:-1].clone()


def places_from_one(x: torch.Tensor) -> Answer:
    values, places = positive(x)
    return values, places + 1


def of_the_bound(x: torch.Tensor) -> Answer:
    """All elements, with the positive ones first."""
    places = torch.argsort(x <= 0, stable=True)
    return x[places], places


def beyond_the_bound(x: torch.Tensor) -> Answer:
    values, places = positive(x)
    return torch.cat([values, x]), places


def the_input(x: torch.Tensor) -> Answer:
    return x[: int((x > 0).sum())], positive(x)[1]
