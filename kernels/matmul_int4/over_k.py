"""gemlite's form of the weights: words of eight neighbours along k, and zeros less 8 scales.

A weight is then ``q * scale + zero``. This zero is rounded once more, so the reference multiplies with the
weights that the rounded zeros give.
"""

from __future__ import annotations

import torch

from .problem import Problem
from .reference import MIDDLE, weights
from .reference import inputs as packed_inputs

WORD = 8
"""Weights per word, the first in the lowest bits."""


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return x, the words (int32, k / 8 by n), and the scales and zeros (groups by n each, in x's dtype)."""
    x, _, pairs = packed_inputs(problem, device, seed)
    scales = pairs[..., 0].contiguous()
    zeros = (pairs[..., 1].float() - MIDDLE * scales.float()).to(scales.dtype)
    return x, words(weights(problem, device, seed)), scales, zeros


def words(q: torch.Tensor) -> torch.Tensor:
    """Pack weights, n by k, into words, k / 8 by n."""
    n, k = q.shape
    if q.is_meta:
        return torch.empty((k // WORD, n), dtype=torch.int32, device=q.device)
    shifts = 4 * torch.arange(WORD, device=q.device)
    made = (q.view(n, k // WORD, WORD).long() << shifts).sum(dim=2)
    return made.t().to(torch.int32).contiguous()


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Return the weights of the words, n by k, as int32."""
    shifts = 4 * torch.arange(WORD, dtype=torch.int32, device=packed.device)
    return (packed.t().unsqueeze(2) >> shifts & 15).flatten(1)


def reference(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, granularity: str
) -> torch.Tensor:
    """Return the product in float64."""
    del granularity
    group = x.shape[1] // scales.shape[0]
    of_scale, of_zero = (each.double().repeat_interleave(group, dim=0).t() for each in (scales, zeros))
    return x.double() @ (unpacked(packed).double() * of_scale + of_zero).t()
