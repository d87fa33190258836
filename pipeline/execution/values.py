"""Values that inputs hold in place of those that a kernel makes, for what a GPU's power limit does with
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from kernels import Tensors
from pipeline.execution.protocol import InputValues


def _integers(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """From -4 to 4, which every floating-point dtype holds."""
    return torch.randint(-4, 5, x.shape, generator=generator, device=x.device, dtype=torch.float32)


def _zeros(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(x.shape, device=x.device)


KINDS: Mapping[InputValues, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "integers": _integers,
    "zeros": _zeros,
}


def fill(inputs: Tensors, kind: InputValues, seed: int) -> None:
    """Write values of a kind into those inputs that hold floating-point numbers; ``normal`` leaves what the
    kernel made."""
    if kind == "normal":
        return
    generator = torch.Generator(inputs[0].device).manual_seed(seed)
    for x in inputs:
        if x.is_floating_point():
            x.copy_(KINDS[kind](x, generator))
