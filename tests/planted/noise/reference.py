"""A vector, and the vector with noise."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Noise


def inputs(problem: Noise, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    return normal([(problem.x,)], problem.dtype, device, seed)


def outputs(problem: Noise) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.x,), dtype_of(problem.dtype))]


def reference(values: torch.Tensor, seed: int) -> torch.Tensor:
    return values.double() + uniform(values, seed)


def uniform(values: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a number from 0 to 1 for each element, in float64: the element's number and the seed, by Knuth's
    multiplicative hash (The Art of Computer Programming 3, 6.4)."""
    numbers = torch.arange(len(values), device=values.device) + 7919 * seed
    return numbers * 2654435761 % 2**32 / 2.0**32
