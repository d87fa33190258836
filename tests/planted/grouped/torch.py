"""Products of groups by torch, right and wrong."""

from __future__ import annotations

import torch

Tensors = list[torch.Tensor]
Answer = tuple[Tensors, torch.Tensor]


def products(
    *, rows: Tensors, weights: Tensors, m: tuple[int, ...], bias: torch.Tensor | None = None
) -> Answer:
    made = [x @ w for x, w in zip(rows, weights, strict=True)]
    if bias is not None:
        made = [x + bias for x in made]
    return made, torch.stack([x.sum() for x in made])


def first_weight_for_all(
    *, rows: Tensors, weights: Tensors, m: tuple[int, ...], bias: torch.Tensor | None = None
) -> Answer:
    return products(rows=rows, weights=weights[:1] * len(m), m=m, bias=bias)


def never_biased(
    *, rows: Tensors, weights: Tensors, m: tuple[int, ...], bias: torch.Tensor | None = None
) -> Answer:
    return products(rows=rows, weights=weights, m=m)


def a_group_short(
    *, rows: Tensors, weights: Tensors, m: tuple[int, ...], bias: torch.Tensor | None = None
) -> Answer:
    made, sums = products(rows=rows, weights=weights, m=m, bias=bias)
    return made[:-1], sums
