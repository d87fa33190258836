"""Timers, one per file, with a common interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...loading import Tensors, as_tuple
from ..stopping import Stopping

SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Signed integer dtypes by element size in bytes."""


@dataclass(frozen=True)
class Rotation:
    """A call to time, and the input sets that it takes in turn.

    A hot measurement has one set. In a cold measurement the sets together exceed the last-level cache so far
    that a set has left the cache before its next turn. ``in_place`` says that the call overwrites its inputs
    with its outputs.
    """

    call: Callable[..., Any]
    inputs: tuple[Tensors, ...]
    in_place: bool = False

    def outputs(self, index: int = 0) -> Tensors:
        """Call on a set and return its outputs: the returned tensors, or the overwritten inputs."""
        made = self.call(*self.inputs[index])
        return self.inputs[index] if self.in_place else as_tuple(made)


@dataclass(frozen=True)
class Reading:
    """The time of a launch of the canary before and after the samples, in microseconds."""

    before_us: float
    after_us: float

    @property
    def us(self) -> float:
        """The larger of the two times."""
        return max(self.before_us, self.after_us)


@dataclass(frozen=True)
class Samples:
    """The result of a timer, in microseconds per call.

    ``touched_bytes`` is the memory that is accessed between two calls on the same set, counting tensors at
    different addresses. ``again(index)`` repeats the timed call on an input set, into memory that was
    overwritten before, and returns the outputs. The graph timer also sets ``canary``, and ``turn``, which
    replays the ``launches`` that were timed, and ``flush``, if the cache was flushed before each turn.
    """

    timer: str
    samples_us: tuple[float, ...]
    rotation: Rotation
    again: Callable[[int], Tensors]
    touched_bytes: int
    canary: Reading | None = None
    turn: Callable[[], None] | None = None
    launches: int = 0
    flush: Callable[[], object] | None = None


def input_bytes(rotation: Rotation) -> int:
    """Return the total bytes of all input sets."""
    return len(rotation.inputs) * sum(x.nbytes for x in rotation.inputs[0])


@torch.inference_mode()
def spoil(outputs: Tensors) -> None:
    """Overwrite outputs, so that elements that a call does not write are wrong: with NaN, and for dtypes
    without NaN with the bitwise complement."""
    for out in outputs:
        if isinstance(out, torch.Tensor):
            spoil_one(out)


def spoil_one(out: torch.Tensor) -> None:
    """Overwrite one output."""
    if out.is_floating_point() or out.is_complex():
        out.fill_(float("nan"))
    elif out.dtype == torch.bool:
        out.logical_not_()
    else:
        # View as signed integers, because torch has no complement for most unsigned dtypes.
        out.view(SIGNED[out.itemsize]).bitwise_not_()


def checked_outputs(rotation: Rotation, index: int = 0) -> Tensors:
    """Call once more on an input set and return the outputs.

    The memory that the outputs are likely to get is overwritten first, so that neither the values of an
    earlier call nor a tensor that the function keeps can pass as new outputs. An in-place call is made only
    once, because it changes its inputs.
    """
    if not rotation.in_place:
        spoil(rotation.outputs(index))
    return rotation.outputs(index)


class Timer(Protocol):
    """The interface of a timer."""

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Warm up, then sample until ``stop`` is met."""
