"""Roots: the checker verifies a property that two answers have."""

import torch


def generate_input(size: int, case: str, seed: int) -> torch.Tensor:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.rand(size, device="cuda", generator=gen)
    return x * 100 if case == "wide" else x


def ref_kernel(data: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(data)


def check_implementation(data: torch.Tensor, output: torch.Tensor) -> str | None:
    return None if torch.allclose(output * output, data) else "its square is not the input"
