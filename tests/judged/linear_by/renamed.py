"""Right, with the parameters under names of its own, in the same order."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(features, features))
        self.b = nn.Parameter(torch.randn(features))
        self.table = nn.Parameter(torch.randn(classes, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.b, x, self.w.t()).clamp_min(0) + self.table[labels]
