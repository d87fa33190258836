"""Calls one after the other, each on a set of its own, whose outputs another process finds in its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels import Tensors, as_tuple


def call_all(call: Callable[..., Any], sets: Sequence[Tensors], places: Sequence[Tensors]) -> None:
    """Call on each set, and copy the outputs into its places at once: the next call gets the same memory for
    its own, as it does where calls are timed. A call that writes over its inputs has no places."""
    for inputs, of_set in zip(sets, places, strict=True):
        if of_set:
            # No name here holds an output while the next call looks for memory.
            _copy(of_set, as_tuple(call(*inputs)))
        else:
            call(*inputs)


def _copy(places: Tensors, outputs: Tensors) -> None:
    for place, out in zip(places, outputs, strict=True):
        if out.requires_grad:
            with torch.no_grad():
                place.copy_(out)
        else:
            place.copy_(out)
