"""Returns a copy of its input."""

import torch


def custom_kernel(data: torch.Tensor) -> torch.Tensor:
    return data.clone()
