"""The same weights in another form: a byte each, made of the packed ones before any call."""

from __future__ import annotations

import torch

from . import Packed
from . import reference as packed_form


def inputs(problem: Packed, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    packed, scales = packed_form.inputs(problem, device, seed)
    return torch.stack([packed % 16, packed // 16], dim=2).reshape(packed.shape[0], -1), scales


def reference(nibbles: torch.Tensor, scales: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    return packed_form.reference(nibbles[:, ::2] + 16 * nibbles[:, 1::2], scales, group)
