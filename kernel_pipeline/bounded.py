"""Outputs whose size depends on the data.

The first axis of such an output has at most the declared size. Where processes share outputs, it lies at the
start of memory of the declared shape, and its size follows the outputs as a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Tensors = tuple["torch.Tensor", ...]

Declared = tuple[tuple[int, ...], "torch.dtype"]
"""Shape and dtype of an output."""


def sizes(count: int) -> tuple[Declared, ...]:
    """Return the shape and dtype of the sizes of ``count`` outputs."""
    import torch

    return (((), torch.int64),) * count


def actual(declared: Sequence[Declared], outputs: Tensors, numbers: Sequence[int]) -> tuple[Declared, ...]:
    """Return declared shapes with the sizes that the outputs ``numbers`` have, as far as these are within the
    bound."""
    found = list(declared)
    for number in numbers:
        shape, dtype = declared[number]
        out = outputs[number] if number < len(outputs) else None
        own = tuple(getattr(out, "shape", ()))
        if len(own) == len(shape) and own[0] <= shape[0]:
            found[number] = (own[0], *shape[1:]), dtype
    return tuple(found)


def placed(declared: Sequence[Declared], outputs: Tensors, numbers: Sequence[int]) -> Tensors:
    """Return the outputs with the outputs ``numbers`` in memory of the declared shape, and the sizes of
    these."""
    import torch

    made, found = list(outputs), []
    with torch.no_grad():
        for number in numbers:
            out = outputs[number]
            made[number] = out.new_zeros(declared[number][0])
            made[number][: len(out)].copy_(out)
            found.append(torch.tensor(len(out), device=out.device))
    return (*made, *found)


def trimmed(outputs: Tensors, numbers: Sequence[int]) -> Tensors:
    """Return placed outputs with their sizes, without what lies beyond."""
    count = len(outputs) - len(numbers)
    made = list(outputs[:count])
    for number, size in zip(numbers, outputs[count:], strict=True):
        made[number] = made[number][: int(size)]
    return tuple(made)
