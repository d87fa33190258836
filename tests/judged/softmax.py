"""No output is above 1e-4, so that zeros are within 1e-4 of the answer."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


batch_size = 16
dim = 2**14


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, dim, device="cuda")]


def get_init_inputs() -> list[object]:
    return []
