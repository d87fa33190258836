"""Right for finite inputs, and zeros in rows with NaN."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1).nan_to_num(0.0)
