"""Four-bit weights made whole by torch, right and wrong."""

from __future__ import annotations

import torch

Two = tuple[torch.Tensor, torch.Tensor]


def whole(packed: torch.Tensor, scales: torch.Tensor, group: int) -> Two:
    return _made_whole(torch.stack([packed & 15, packed >> 4], dim=2), scales, group)


def steps(packed: torch.Tensor, scales: torch.Tensor, group: int, bytes_a_step: int) -> Two:
    nibbles = [torch.stack([part & 15, part >> 4], dim=2) for part in packed.split(bytes_a_step, dim=1)]
    return _made_whole(torch.cat(nibbles, dim=1), scales, group)


def nibbles_swapped(packed: torch.Tensor, scales: torch.Tensor, group: int) -> Two:
    """The sums stay right."""
    return _made_whole(torch.stack([packed >> 4, packed & 15], dim=2), scales, group)


def scale_of_the_next_group(packed: torch.Tensor, scales: torch.Tensor, group: int) -> Two:
    return whole(packed, scales.roll(1, dims=1), group)


def sum_unwritten(packed: torch.Tensor, scales: torch.Tensor, group: int) -> Two:
    """Leave the sum of the last row unwritten."""
    weights, sums = whole(packed, scales, group)
    out = torch.empty_like(sums)
    out[:-1] = sums[:-1]
    return weights, out


def sum_off_by_one(packed: torch.Tensor, scales: torch.Tensor, group: int) -> Two:
    weights, sums = whole(packed, scales, group)
    sums[0] += 1
    return weights, sums


def bytewise(nibbles: torch.Tensor, scales: torch.Tensor, group: int) -> Two:
    """Right for weights that take a byte each."""
    return _made_whole(nibbles, scales, group)


def _made_whole(nibbles: torch.Tensor, scales: torch.Tensor, group: int) -> Two:
    nibbles = nibbles.reshape(nibbles.shape[0], -1)
    weights = (nibbles.float() - 8) * scales.float().repeat_interleave(group, dim=1)
    return weights.to(scales.dtype), nibbles.sum(dim=1, dtype=torch.int32)
