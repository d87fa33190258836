"""Providers that compute and have the clock, or what is made of its times, tell less."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import torch

CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")


def stops_the_clocks(x: torch.Tensor) -> torch.Tensor:
    """A thousandth of the time passes: more than any machine can do."""
    _once(stops_the_clocks, lambda: _slow_down(1000))
    return torch.sinc(x)


def slows_the_clocks(x: torch.Tensor) -> torch.Tensor:
    """A fiftieth of the time passes."""
    _once(slows_the_clocks, lambda: _slow_down(50))
    return torch.sinc(x)


def divides_the_samples(x: torch.Tensor) -> torch.Tensor:
    """Every timer of the process gives a fiftieth of what it took."""
    _once(divides_the_samples, _divide_samples)
    return torch.sinc(x)


def divides_the_summary(x: torch.Tensor) -> torch.Tensor:
    """What is made of the samples is a fiftieth of them."""
    _once(divides_the_summary, _divide_summary)
    return torch.sinc(x)


def _once(function: Any, do: Any) -> None:
    if not hasattr(function, "done"):
        function.done = True
        do()


def _slow_down(factor: float) -> None:
    """Every clock of the process runs slow, also those that a module imported by name."""
    for name in CLOCKS:
        for suffix, number in (("", float), ("_ns", int)):
            real = getattr(time, name + suffix)
            begin = real()

            def slow(real: Any = real, begin: Any = begin, number: Any = number) -> Any:
                return number(begin + (real() - begin) / factor)

            for module in list(sys.modules.values()):
                for attribute, value in list(getattr(module, "__dict__", {}).items()):
                    if value is real:
                        setattr(module, attribute, slow)


def _divide_samples() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("kernel_pipeline.timing.timers"):
            for timer in [one for one in vars(module).values() if isinstance(one, type)]:
                if timer.__module__ == name and "measure" in vars(timer):
                    timer.measure = _dividing(timer.measure)


def _dividing(real: Any) -> Any:
    def measure(*args: Any, **kwargs: Any) -> Any:
        samples = real(*args, **kwargs)
        return replace(samples, samples_us=tuple(one / 50 for one in samples.samples_us))

    return measure


def _divide_summary() -> None:
    for name, module in list(sys.modules.items()):
        real = getattr(module, "quantile", None)
        if name.startswith("kernel_pipeline.") and callable(real):
            module.quantile = lambda *args, real=real, **kwargs: real(*args, **kwargs) / 50
