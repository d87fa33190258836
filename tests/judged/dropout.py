"""A module in training drops other elements at each call."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dropout(x)
        return out * 2


rows = 64


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(rows, 32)]


def get_init_inputs() -> list[float]:
    return [0.5]
