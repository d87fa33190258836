"""Rounds as the reference does."""

import torch


def custom_kernel(data: tuple[torch.Tensor, dict[str, float]]) -> list[torch.Tensor]:
    x, limits = data
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / limits["high"]
    return [(x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float(), scale]
