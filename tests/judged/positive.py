"""The inputs are positive, so that an answer could be its input."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


n = 4096


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(n)]


def get_init_inputs() -> list[object]:
    return []
