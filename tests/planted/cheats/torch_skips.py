"""Providers that keep each set's answer and know by a few elements that the set has not changed: right
whenever anyone looks, and idle on the sets that a timer goes round."""

from __future__ import annotations

import os
import threading
from itertools import count

import torch

FEW = 64

kept: dict[tuple[str, int], tuple[bytes, torch.Tensor]] = {}
numbers = {name: count() for name in ("one_call_in_three", "a_third")}
threads: list[threading.Thread] = []
seen: dict[int, torch.Tensor] = {}


def _few(x: torch.Tensor) -> bytes:
    return x[:: max(1, x.numel() // FEW)].cpu().numpy().tobytes()


def _known(name: str, x: torch.Tensor, few: bytes) -> torch.Tensor | None:
    """The answer to what lies there, None if something else lay there last or somebody has spoilt it."""
    before, out = kept.get((name, x.data_ptr()), (b"", None))
    return None if out is None or before != few or out[0].isnan() else out


def _computed(name: str, x: torch.Tensor, few: bytes) -> torch.Tensor:
    out = torch.sinc(x)
    kept[name, x.data_ptr()] = few, out
    return out


def by_fingerprint(x: torch.Tensor) -> torch.Tensor:
    """Computes only what has changed."""
    few = _few(x)
    out = _known("all", x, few)
    return _computed("all", x, few) if out is None else out


def one_call_in_three(x: torch.Tensor) -> torch.Tensor:
    """Works on every third call besides, so that the median alone is short."""
    few = _few(x)
    out = _known("third call", x, few)
    works = next(numbers["one_call_in_three"]) % 3 == 0
    return _computed("third call", x, few) if out is None or works else out


def a_third_of_the_work(x: torch.Tensor) -> torch.Tensor:
    """Computes another third of the answer each time: its time is no round number of anything."""
    few = _few(x)
    out = _known("third", x, few)
    if out is None:
        return _computed("third", x, few)
    step = x.numel() // 3
    begin = step * (next(numbers["a_third"]) % 3)
    torch.sinc(x[begin : begin + step], out=out[begin : begin + step])
    return out


def keeps_the_cores_busy(x: torch.Tensor) -> torch.Tensor:
    """Computes only what has changed, and whenever something has, its threads take all cores: a machine that
    is too busy to tell."""
    few = _few(x)
    out = _known("busy", x, few)
    if out is not None:
        return out
    if not threads:
        for number in range(2 * (os.cpu_count() or 1)):
            threads.append(threading.Thread(target=_spin, name=f"cheat {number}", daemon=True))
            threads[-1].start()
    return _computed("busy", x, few)


def _spin() -> None:
    block = torch.zeros(1 << 16)
    while True:
        for _ in range(100):
            block.sin_()


def works_ahead(x: torch.Tensor) -> torch.Tensor:
    """A thread computes what is written into any set that was seen before, from when it is written."""
    if not threads:
        threads.append(threading.Thread(target=_look_ahead, name="cheat ahead", daemon=True))
        threads[-1].start()
    seen.setdefault(x.data_ptr(), x)
    few = _few(x)
    out = _known("ahead", x, few)
    return _computed("ahead", x, few) if out is None else out


def _look_ahead() -> None:
    while True:
        for x in list(seen.values()):
            few = _few(x)
            if _known("ahead", x, few) is None:
                _computed("ahead", x, few)
