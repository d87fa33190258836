"""Made for rows of a multiple of 16 elements: refuses others."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        blocks = x.view(x.shape[0], -1, 16)
        e = torch.exp(blocks - blocks.amax((1, 2), keepdim=True))
        return (e / e.sum((1, 2), keepdim=True)).view_as(x)
