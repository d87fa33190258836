"""Prune a trained network to 2:4, and train it again from its first weights: the lottery ticket's idea."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

KEPT, OF = 2, 4

torch.manual_seed(0)
torch.set_num_threads(1)  # the products are small
points = torch.rand(1000, 2) * 6 - 3
labels = points.norm(dim=1).long() % 2  # rings
known, rest = slice(0, 500), slice(500, None)


def network() -> nn.Sequential:
    """A network of two hidden layers, always with the same first weights."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def trained(mask: torch.Tensor | None) -> nn.Sequential:
    """Train from the first weights; with a mask the middle layer keeps only its weights."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        if mask is not None:
            model[2].weight.data *= mask
        optimizer.zero_grad()
        functional.cross_entropy(model(points[known]), labels[known]).backward()
        optimizer.step()
    if mask is not None:
        model[2].weight.data *= mask
    return model


def right(model: nn.Module) -> str:
    """The share of the other points that the network knows."""
    return f"{(model(points[rest]).argmax(1) == labels[rest]).float().mean():.1%}"


def kept(scores: torch.Tensor) -> torch.Tensor:
    """1 for the KEPT largest of every OF neighbours in a row, else 0."""
    best = scores.view(-1, OF).topk(KEPT, dim=1).indices
    return torch.zeros(scores.numel() // OF, OF).scatter_(1, best, 1.0).view_as(scores)


model = trained(None)
print(f"dense: {right(model)}")
mask = kept(model[2].weight.detach().abs())
model[2].weight.data *= mask
print(f"pruned {KEPT}:{OF} by size, not trained again: {right(model)}")
print(f"the same places, trained from the first weights: {right(trained(mask))}")
print(f"random places, trained from the first weights: {right(trained(kept(torch.rand(64, 64))))}")
print(f"zeros in the middle layer: {1 - mask.mean():.0%}")
