"""Measure the host time that a function adds to its provider's entry:
``python -m kernel_pipeline.ops.overhead [KERNEL...]``.

It prints a line for each function, in microseconds: the time of the chosen provider's entry called directly,
and the time that the function and the operator (which torch.compile and autograd call) add to it. The problem
is so small that the host decides the time. Batches of the three alternate. The entry's time is the minimum
over its batches; the added times are medians of the differences within a turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch

from .. import loading, ops
from . import native, plans

BATCHES = 40

MOST, FEWEST = 200, 5
"""The maximum and minimum number of calls in a batch. A GPU's launch queue holds more launches than that."""

BATCH_S = 0.01
"""The target length of a batch in seconds."""


def small(loaded: loading.Loaded) -> Any:
    """Return a small problem with all defaults; a dimension without a default is 64."""
    dimensions = loaded.kernel.dimensions()
    named: dict[str, Any] = {
        name: 64 for name, one in dimensions.items() if one.default is None and one.same_as is None
    }
    for name, one in dimensions.items():
        if one.same_as is not None:
            named[name] = named.get(one.same_as) or dimensions[one.same_as].default
    return loaded.kernel.interpreted(loaded.kernel.problem(**named))


def microseconds(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """Return the host time of the first call in microseconds, and the time that each other call adds to
    it."""
    longest = max(timed(call, FEWEST, device) for call in calls)
    count = max(FEWEST, min(MOST, int(BATCH_S / longest)))
    turns: list[list[float]] = []
    for turn in range(BATCHES):
        step = 1 if turn % 2 else -1
        turns.append([timed(call, count, device) for call in calls[::step]][::step])
    added = ([times[0], *(one - times[0] for one in times[1:])] for times in turns)
    entry, *others = zip(*added, strict=True)
    return [1e6 * min(entry), *(1e6 * median(one) for one in others)]


def timed(call: Callable[[], Any], count: int, device: torch.device) -> float:
    """Return the host's seconds per call, averaged over ``count`` calls."""
    begin = perf_counter()
    for _ in range(count):
        call()
    took = (perf_counter() - begin) / count
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return took


def measure(name: str, device: torch.device) -> tuple[str, list[float]]:
    """Return the provider of a function, and three times in microseconds: the entry's time, and the time that
    the function and the operator add."""
    loaded, function = loading.load(name), ops.function(name)
    problem = small(loaded)
    inputs, arguments = loaded.inputs(problem, device, 0), loaded.arguments(problem)
    args = function.filled(inputs, arguments)
    plan = function.plan(*args)
    try:
        entry = plans.ready(loaded, problem, plan.choice, device)
        named = {**arguments, **plan.choice.parameters}
        direct: Callable[[], Any] = lambda: entry(*inputs, **named)  # noqa: E731
    except native.NotThereError:
        direct = lambda: function.op.definition(*args)  # noqa: E731
    calls = direct, lambda: function.call(*args), lambda: function.operator(*args)
    with torch.no_grad():
        return plan.choice.provider, microseconds(calls, device)


def main(words: Sequence[str]) -> None:
    """Print a line for each named function, or for all."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{'function':<20} {'provider':<16} {'entry us':>9} {'call adds':>10} {'operator adds':>14}")
    for name in words or ops.names():
        provider, (entry, call, operator) = measure(name, device)
        print(f"{name:<20} {provider:<16} {entry:9.2f} {call:10.2f} {operator:14.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
