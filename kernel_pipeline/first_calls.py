"""Call a function before it is timed, to get its outputs and to find out whether it overwrites its inputs, is
random, or reuses the memory of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from . import verification
from .arguments import BenchError, copied, equal, returns_tensors, tensors_of
from .checking import compared
from .loading import Tensors, as_tuple
from .timing.timers import spoil


@dataclass(frozen=True)
class FirstCalls:
    """The facts that the first calls of a function show.

    ``call`` returns the outputs as tensors. ``in_place``: the function overwrites inputs, ``changed``, with
    the outputs, and another call on these gives other outputs. ``random``: a second call on the same inputs
    returns other outputs. ``kept``: the outputs whose memory the function reuses from call to call.
    ``bytes``: the bytes of inputs and outputs together.
    """

    call: Callable[..., Any]
    outputs: Tensors
    in_place: bool
    random: bool
    kept: Tensors
    bytes: int
    changed: tuple[int, ...] = ()

    @classmethod
    def made(cls, call: Callable[..., Any], tensors: Tensors) -> FirstCalls:
        """Call the function on copies of the inputs. Raises BenchError if it has no visible effect, or
        returns an input or a view of one."""
        given = copied(tensors)
        returned = call(*given)
        changed = [i for i, (x, old) in enumerate(zip(given, tensors, strict=True)) if not equal(x, old)]
        bytes_ = sum(x.nbytes for x in tensors)
        outputs = tensors_of(returned)
        if changed:
            written = copied(tuple(given[i] for i in changed))
            other = copied(tensors)
            for i in changed:
                _reverse(other[i])
            again = tensors_of(call(*other)), tensors_of(call(*given))
            if _is_new(outputs, given) and all(_are_equal(outputs, more) for more in again):
                # The returned tensors do not depend on the changed inputs, which are a workspace.
                return cls._returning(_detached(call), tensors, bytes_ + sum(x.nbytes for x in outputs))
            if all(_are_equal(written, [some[i] for i in changed]) for some in (other, given)):
                # They are written whatever they hold: output buffers.
                return cls._returning(_giving(call, changed), tensors, bytes_)
            return cls(call, written, True, False, (), bytes_, tuple(changed))
        if not outputs:
            raise BenchError(
                "the function returned no tensor and changed none of its inputs: nothing shows that it ran. "
                "Return the output, or pass its tensor as an input."
            )
        if not _is_new(outputs, given):
            raise BenchError(
                "the function returns an input or a view of one, which takes no work: return a "
                "new tensor instead."
            )
        if not returns_tensors(returned) or any(x.requires_grad for x in outputs):
            call = _detached(call)
        return cls._returning(call, tensors, bytes_ + sum(x.nbytes for x in outputs))

    @classmethod
    def _returning(cls, call: Callable[..., Any], tensors: Tensors, bytes_: int) -> FirstCalls:
        """Call a function that returns its outputs twice. It is random if the outputs differ. It reuses the
        memory of an output if both calls return the same address."""
        inputs = copied(tensors), copied(tensors)
        first = as_tuple(call(*inputs[0]))
        outputs = copied(tuple(x.detach() for x in first))
        second = as_tuple(call(*inputs[1]))
        kept = tuple(
            x for x, y in zip(second, first, strict=False) if x.data_ptr() == y.data_ptr() and x.numel()
        )
        random = compared(second, as_reference(outputs), None).error is not None
        return cls(call, outputs, False, random, kept, bytes_)


def _reverse(x: torch.Tensor) -> None:
    """Reverse the order of a tensor's elements along each dimension."""
    numbers = x.view(torch.uint8) if x.itemsize == 1 else x  # torch reverses no 8-bit floats
    numbers.copy_(numbers.flip(tuple(range(x.dim()))))


def _is_new(outputs: Tensors, inputs: Tensors) -> bool:
    """Whether there are outputs, all in memory of their own."""
    places = {x.untyped_storage().data_ptr() for x in inputs if x.numel()}
    return bool(outputs) and not any(x.untyped_storage().data_ptr() in places for x in outputs if x.numel())


def _are_equal(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(map(equal, some, others))


def _giving(call: Callable[..., Any], places: Sequence[int]) -> Callable[..., Tensors]:
    """Wrap a function that writes into inputs so that it returns these inputs."""

    def giving(*tensors: torch.Tensor) -> Tensors:
        call(*tensors)
        return tuple(tensors[place] for place in places)

    return giving


def _detached(call: Callable[..., Any]) -> Callable[..., Tensors]:
    """Wrap a function so that it returns only tensors, detached from autograd's graph."""

    def detached(*tensors: torch.Tensor) -> Tensors:
        return tuple(x.detach() for x in tensors_of(call(*tensors)))

    return detached


def as_reference(outputs: Tensors) -> Tensors:
    """Return outputs as a reference returns them: floating-point outputs in float64."""
    return tuple(x.double() if x.is_floating_point() else x for x in outputs)


@contextmanager
def restored(tensors: Tensors) -> Iterator[None]:
    """Restore the tensors' values at the end."""
    copies = copied(tensors)
    try:
        yield
    finally:
        with torch.inference_mode():
            for x, old in zip(tensors, copies, strict=True):
                x.copy_(old)


def untouched(outputs: Tensors, right: Tensors) -> bool:
    """Whether the outputs still hold the values that ``spoil`` wrote."""
    spoilt = copied(right)
    spoil(spoilt)
    return any(x.numel() for x in outputs) and verification.unchanged(outputs, spoilt)
