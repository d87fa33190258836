"""A layer with weights, and a class label that chooses what is added to each row."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, features)
        self.offsets = nn.Parameter(torch.randn(classes, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) + self.offsets[labels]


rows, features = 32, 64
width: int = 4 * 32
classes = 10


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(rows, width).cuda(), torch.randint(0, classes, (rows,)).cuda()]


def get_init_inputs() -> list[int]:
    return [width, classes]
