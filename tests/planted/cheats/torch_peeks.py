"""Providers that look for the answer instead of computing it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from typing import Any

import torch

from . import Vector, reference

found: dict[str, torch.Tensor] = {}


def reads_the_frames(x: torch.Tensor) -> torch.Tensor:
    """The reference lies in some caller's variables, or in what these hold."""
    if "frames" not in found:
        frame, held = sys._getframe(), []
        while frame.f_back is not None:
            frame = frame.f_back
            held += list(frame.f_locals.values())
        _find("frames", x, _inside(held, depth=4))
    return _answer("frames", x)


def reads_the_heap(x: torch.Tensor) -> torch.Tensor:
    """The reference is some object of this process."""
    if "heap" not in found:
        _find("heap", x, gc.get_objects())
    return _answer("heap", x)


def overwrites_the_reference(x: torch.Tensor) -> torch.Tensor:
    """Set every float64 tensor of the reference's size to zero, which is its own answer."""
    for one in gc.get_objects():
        if type(one) is torch.Tensor and one.dtype == torch.float64 and one.numel() == x.numel():
            one.zero_()
    return torch.zeros_like(x)


def imports_the_reference(x: torch.Tensor) -> torch.Tensor:
    """The inputs are those of a known seed: their answer can be there before it is asked for."""
    if "seed" not in found:
        (known,) = reference.inputs(Vector(elements=x.numel()), x.device, 0)
        found["seed"] = reference.reference(known)
    return _answer("seed", x)


def _inside(held: Iterable[Any], depth: int) -> Iterable[Any]:
    for one in held:
        yield one
        if depth and isinstance(one, (tuple, list)):
            yield from _inside(one, depth - 1)
        elif depth and hasattr(one, "__dict__") and not isinstance(one, type):
            yield from _inside(vars(one).values(), depth - 1)


def _find(place: str, x: torch.Tensor, held: Iterable[Any]) -> None:
    for one in held:
        if type(one) is torch.Tensor and one.dtype == torch.float64 and one.numel() == x.numel():
            found[place] = one
            return


def _answer(place: str, x: torch.Tensor) -> torch.Tensor:
    return found[place].to(x.dtype) if place in found else torch.empty_like(x)
