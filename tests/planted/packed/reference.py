"""Packed weights with their scales, and what they stand for."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Packed


def inputs(problem: Packed, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    shape = (problem.rows, problem.columns // 2)
    scales = normal([(problem.rows, problem.columns // problem.group)], problem.dtype, device, seed)
    if device.type == "meta":
        return torch.empty(shape, dtype=torch.uint8, device=device), *scales
    generator = torch.Generator(device=device).manual_seed(seed)
    packed = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator, device=device)
    return packed, *scales


def outputs(problem: Packed) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.rows, problem.columns), dtype_of(problem.dtype)), ((problem.rows,), torch.int32)]


def reference(packed: torch.Tensor, scales: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    nibbles = torch.stack([packed % 16, packed // 16], dim=2).reshape(packed.shape[0], -1)
    of_column = torch.arange(nibbles.shape[1], device=packed.device) // group
    return (nibbles.double() - 8) * scales.double()[:, of_column], nibbles.long().sum(dim=1)
