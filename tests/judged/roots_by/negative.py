"""Right, by the other root."""

import torch


def custom_kernel(data: torch.Tensor) -> torch.Tensor:
    return -torch.sqrt(data)
