"""Providers that compute once, or now and then, and give an old answer as a new one."""

from __future__ import annotations

import time
from itertools import count

import torch

answers: dict[object, torch.Tensor] = {}
kept: list[torch.Tensor] = []
calls = {name: count() for name in ("first_call_only", "first_four_calls", "one_call_in_eight", "hurried")}
last = {"end": 0.0}
ahead: dict[int, torch.Tensor] = {}

ALIGNMENT = 512
"""Bytes between whose multiples tensors begin."""


def by_pointer(x: torch.Tensor) -> torch.Tensor:
    """The answer to whatever lay at that address before."""
    return _cached(("pointer", x.data_ptr()), x)


def by_shape(x: torch.Tensor) -> torch.Tensor:
    """One answer for all inputs of a shape."""
    return _cached(("shape", tuple(x.shape)), x)


def by_identity(x: torch.Tensor) -> torch.Tensor:
    """The answer to whatever that Python object held before."""
    if ("identity", id(x)) not in answers:
        kept.append(x)  # so that no other tensor gets its id
    return _cached(("identity", id(x)), x)


def by_version(x: torch.Tensor) -> torch.Tensor:
    """As ``by_pointer``, but it computes again when torch's counter says that the memory was written."""
    return _cached(("version", x.data_ptr(), x._version), x)


def by_few_elements(x: torch.Tensor) -> torch.Tensor:
    """Knows an input again by eight of its elements."""
    few = x[:: x.numel() // 8]
    return _cached(("few", bytes(few.cpu().numpy())), x)


def by_contents(x: torch.Tensor) -> torch.Tensor:
    """Knows an input again by all of its bytes, so it reads them all."""
    return _cached(("contents", hash(x.cpu().numpy().tobytes())), x)


def _cached(key: object, x: torch.Tensor) -> torch.Tensor:
    if key not in answers:
        answers[key] = torch.sinc(x)
    return answers[key].clone()


def first_call_only(x: torch.Tensor) -> torch.Tensor:
    """Later it gives memory as it is, which the first call may have filled with its answer."""
    return torch.sinc(x) if next(calls["first_call_only"]) == 0 else torch.empty_like(x)


def first_four_calls(x: torch.Tensor) -> torch.Tensor:
    """Right for as long as anyone may look."""
    return torch.sinc(x) if next(calls["first_four_calls"]) < 4 else torch.empty_like(x)


def one_call_in_eight(x: torch.Tensor) -> torch.Tensor:
    """Gives the answer to another input in between."""
    if next(calls["one_call_in_eight"]) % 8 == 0:
        answers["last"] = torch.sinc(x)
    return answers["last"].clone()


def idle_when_hurried(x: torch.Tensor) -> torch.Tensor:
    """Calls that follow each other closely are taken for a timing, in which nobody looks at the answer."""
    hurried = time.monotonic() - last["end"] < 5e-4
    # The first calls that follow closely may be a warm-up that is verified.
    out = torch.empty_like(x) if hurried and next(calls["hurried"]) >= 2 else torch.sinc(x)
    last["end"] = time.monotonic()
    return out


def looks_ahead(x: torch.Tensor) -> torch.Tensor:
    """Where inputs lie side by side, one call does the work of all after it, which cost nothing then:
    the median falls, and so does the difference between many calls and twice as many."""
    if (out := ahead.pop(x.data_ptr(), None)) is not None:
        return out
    elements, step = x.numel(), -(-x.nbytes // ALIGNMENT) * ALIGNMENT // x.itemsize
    all_ = x.untyped_storage().nbytes() // x.itemsize
    for offset in range(x.storage_offset() + step, all_ - elements + 1, step):
        other = x.as_strided((elements,), (1,), offset)
        ahead[other.data_ptr()] = torch.sinc(other)
    return torch.sinc(x)
