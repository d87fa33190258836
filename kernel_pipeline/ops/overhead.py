"""Measure the host time of a small call: ``python -m kernel_pipeline.ops.overhead [KERNEL...]``.

It prints a line for each function, in microseconds: the time of torch's own function, of the function that
users call, of the chosen provider's entry called directly, and of the operator (which torch.compile and
autograd call). The problem is so small that the host decides the time. Batches of the four alternate; each
time is the minimum over its batches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
    """Return the host time of each call in microseconds."""
    longest = max(timed(call, FEWEST, device) for call in calls)
    count = max(FEWEST, min(MOST, int(BATCH_S / longest)))
    turns = [[timed(call, count, device) for call in calls] for _ in range(BATCHES)]
    return [1e6 * min(times) for times in zip(*turns, strict=True)]


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
    """Return the provider of a function, and the times in microseconds of torch's function, of the function,
    of the provider's entry, and of the operator."""
    loaded, function = loading.load(name), ops.function(name)
    problem = small(loaded)
    inputs, arguments = loaded.inputs(problem, device, 0), loaded.arguments(problem)
    args = function.filled(inputs, arguments)
    plan = function.plan(*args)
    torchs: Callable[[], Any] = lambda: function.op.definition(*args)  # noqa: E731
    direct = torchs
    try:
        entry = plans.ready(loaded, problem, plan.choice, device)
        named = {**arguments, **plan.choice.parameters}
        direct = lambda: entry(*inputs, **named)  # noqa: E731
    except native.NotThereError:
        pass
    calls = torchs, lambda: function.call(*args), direct, lambda: function.operator(*args)
    with torch.no_grad():
        return plan.choice.provider, microseconds(calls, device)


def main(words: Sequence[str]) -> None:
    """Print a line for each named function, or for all."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = ("torch us", "call us", "ratio", "entry us", "operator us")
    print(f"{'function':<20} {'provider':<16} " + " ".join(f"{name:>11}" for name in names))
    for name in words or ops.names():
        provider, (torchs, call, entry, operator) = measure(name, device)
        times = torchs, call, call / torchs, entry, operator
        print(f"{name:<20} {provider:<16} " + " ".join(f"{one:11.2f}" for one in times))


if __name__ == "__main__":
    main(sys.argv[1:])
