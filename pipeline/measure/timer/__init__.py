"""How a call is timed: one timer a file, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.contract import Inputs
from pipeline.measure.stopping import Stopping


@dataclass(frozen=True)
class Workload:
    """What is timed: a call, and the input sets it is given in turn.

    One set makes a hot measurement. For a cold one the sets together exceed the last cache so far
    that a set is gone from it by the time its turn comes again.
    """

    call: Callable[..., torch.Tensor]
    inputs: tuple[Inputs, ...]


@dataclass(frozen=True)
class Samples:
    """What a timer measured: microseconds a call; the output of the last call on the first input set; the
    bytes of memory that were gone over from one call on a set to the next on the same one (of tensors that
    lie apart); and the microseconds of overhead that were taken off each call."""

    timer: str
    samples_us: tuple[float, ...]
    output: torch.Tensor
    touched_bytes: int
    overhead_us: float = 0.0


def input_bytes(workload: Workload) -> int:
    """Bytes of all input sets together."""
    return len(workload.inputs) * sum(x.nbytes for x in workload.inputs[0])


def checked_output(workload: Workload) -> torch.Tensor:
    """The output of one more call on the first input set.

    The memory that it is likely to get held NaN before, so that neither a right value of an earlier call nor
    a tensor that the call kept can pass for a new output.
    """
    out = workload.call(*workload.inputs[0])
    if isinstance(out, torch.Tensor):
        out.fill_(float("nan"))
    del out
    return workload.call(*workload.inputs[0])


class Timer(Protocol):
    """A way of timing."""

    def measure(self, workload: Workload, stop: Stopping) -> Samples:
        """Warm up, then sample until ``stop`` says that it is enough."""
