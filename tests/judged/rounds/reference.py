"""Round numbers to FP8, by the largest number of each row."""

import torch
import utils


def generate_input(
    rows: int, group: int, limits: list[int], gain: float, seed: int, is_clamped: bool = False
) -> tuple[torch.Tensor, dict[str, float]]:
    torch.manual_seed(seed)
    low, high = limits
    x = torch.randn(rows, group, device="cuda") * gain
    return x.clamp(-9, 9) if is_clamped else x, {"low": low, "high": high}


def ref_kernel(data: tuple[torch.Tensor, dict[str, float]]) -> tuple[torch.Tensor, torch.Tensor]:
    x, limits = data
    scale = x.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / limits["high"]
    scaled = (x / scale).clamp(limits["low"], limits["high"])
    return scaled.to(torch.float8_e4m3fn).to(torch.float32), scale


def check_implementation(
    data: tuple[torch.Tensor, dict[str, float]], output: tuple[torch.Tensor, torch.Tensor]
) -> tuple[bool, str]:
    for received, expected in zip(output, ref_kernel(data), strict=True):
        is_right, why = utils.close(received, expected)
        if not is_right:
            return False, why
    return True, ""
