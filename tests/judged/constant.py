"""The answer does not depend on the inputs: the softmax of one number is 1."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.sum(dim=1, keepdim=True), dim=1)


rows = 64


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(rows, 32)]


def get_init_inputs() -> list[object]:
    return []
