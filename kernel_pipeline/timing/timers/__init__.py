"""How a call is timed: one timer a file, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...loading import Tensors, as_tuple
from ..stopping import Stopping

SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by the bytes of an element."""


@dataclass(frozen=True)
class Rotation:
    """What is timed: a call, and the input sets it is given in turn.

    One set makes a hot measurement. For a cold one the sets together exceed the last cache so far
    that a set is gone from it by the time its turn comes again. A call that is ``in_place`` writes over its
    inputs.
    """

    call: Callable[..., Any]
    inputs: tuple[Tensors, ...]
    in_place: bool = False

    def outputs(self, index: int = 0) -> Tensors:
        """What a call on a set gives: what it returns, or the inputs that it writes over."""
        made = self.call(*self.inputs[index])
        return self.inputs[index] if self.in_place else as_tuple(made)


@dataclass(frozen=True)
class Reading:
    """Microseconds of a launch of the canary before and after some samples."""

    before_us: float
    after_us: float

    @property
    def us(self) -> float:
        """The later of the two."""
        return max(self.before_us, self.after_us)


@dataclass(frozen=True)
class Samples:
    """What a timer measured: microseconds a call; the rotation; and the bytes of memory that were gone over
    from one call on a set to the next on the same one (of tensors that lie apart).

    ``again`` gives the outputs of one more call on an input set, by what was timed, into memory that was
    spoilt. The graph timer also gives the canary's reading, and ``turn``, which replays the ``launches`` that
    were timed.
    """

    timer: str
    samples_us: tuple[float, ...]
    rotation: Rotation
    again: Callable[[int], Tensors]
    touched_bytes: int
    canary: Reading | None = None
    turn: Callable[[], None] | None = None
    launches: int = 0


def input_bytes(rotation: Rotation) -> int:
    """Bytes of all input sets together."""
    return len(rotation.inputs) * sum(x.nbytes for x in rotation.inputs[0])


@torch.inference_mode()
def spoil(outputs: Tensors) -> None:
    """Write over outputs, so that what a call does not write can't be right: NaN, and where there is none the
    complement of what was there."""
    for out in outputs:
        if isinstance(out, torch.Tensor):
            spoil_one(out)


def spoil_one(out: torch.Tensor) -> None:
    """Write over one output."""
    if out.is_floating_point() or out.is_complex():
        out.fill_(float("nan"))
    elif out.dtype == torch.bool:
        out.logical_not_()
    else:
        # As signed ones, for torch has no complement of most unsigned ones.
        out.view(SIGNED[out.itemsize]).bitwise_not_()


def checked_outputs(rotation: Rotation, index: int = 0) -> Tensors:
    """The outputs of one more call on an input set.

    The memory that they are likely to get was spoilt before, so that neither a right value of an earlier call
    nor a tensor that the call kept can pass for a new output. A call that is in place is made once, for it
    has changed its inputs then.
    """
    if not rotation.in_place:
        spoil(rotation.outputs(index))
    return rotation.outputs(index)


class Timer(Protocol):
    """A way of timing."""

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Warm up, then sample until ``stop`` says that it is enough."""
