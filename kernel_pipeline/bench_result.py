"""The result of ``bench``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from .records.measurement import State


@dataclass(frozen=True)
class BenchResult:
    """The time of a function, in microseconds per call.

    median_us, interval:
        The median of the samples, and its 95 % confidence interval.
    valid, why:
        Whether the time can be trusted. If not, ``why`` gives the reason: a wrong output, a throttled GPU,
        busy cores.
    timer, cache:
        The timer (``graph``, ``event`` or ``perf_counter``), and the state of the cache (``cold`` or
        ``hot``).
    host_us:
        The host's time until a call returns; None on a CPU, where it equals ``median_us``.
    gbps, tflops, of_ceiling:
        The rates computed from the given bytes and operations, and their share of the device's ceiling.
    notes:
        Remarks on how the function was timed.
    hot:
        With ``cache="both"`` the result over a hot cache.
    forward, backward_us:
        With ``backward=True`` this result times both passes together, ``forward`` is the result of the
        forward pass alone, and ``backward_us`` is the difference of the medians.
    """

    name: str
    device: str
    median_us: float
    interval: tuple[float, float]
    samples_us: tuple[float, ...] = field(repr=False)
    timer: str
    cache: Literal["cold", "hot"]
    valid: bool = True
    why: str = ""
    host_us: float | None = None
    gbps: float | None = None
    tflops: float | None = None
    of_ceiling: float | None = None
    notes: tuple[str, ...] = ()
    state: State | None = field(default=None, repr=False)
    hot: BenchResult | None = None
    forward: BenchResult | None = None
    backward_us: float | None = None

    def __repr__(self) -> str:
        return f"{self.name}: {', '.join(self._words())}{'' if self.valid else f'; not valid: {self.why}'}"

    def _words(self) -> Iterator[str]:
        low, high = self.interval
        yield f"{self.median_us:.4g} us [{low:.4g}, {high:.4g}]"
        if self.forward is not None and self.backward_us is not None:
            yield f"forward {self.forward.median_us:.4g} us, backward {self.backward_us:.4g} us"
        if self.hot is not None:
            yield f"hot {self.hot.median_us:.4g} us"
        if self.gbps is not None:
            yield f"{self.gbps:.4g} GB/s"
        if self.tflops is not None:
            yield f"{self.tflops:.4g} TFLOP/s"
        if self.of_ceiling is not None:
            yield f"{self.of_ceiling:.0%} of the ceiling"
        if self.host_us is not None:
            yield f"host {self.host_us:.3g} us"
        yield f"{self.cache} cache, {len(self.samples_us)} samples by {self.timer}"

    def _repr_html_(self) -> str:
        """Return the result as an HTML table, for a notebook."""
        rows = [
            ("time", f"{self.median_us:.4g} us"),
            ("interval", "{:.4g} to {:.4g} us".format(*self.interval)),
        ]
        rows += [("hot cache", f"{self.hot.median_us:.4g} us")] if self.hot else []
        rows += [("bandwidth", f"{self.gbps:.4g} GB/s")] if self.gbps is not None else []
        rows += [("rate", f"{self.tflops:.4g} TFLOP/s")] if self.tflops is not None else []
        rows += [("of the ceiling", f"{self.of_ceiling:.0%}")] if self.of_ceiling is not None else []
        rows += [("host", f"{self.host_us:.3g} us")] if self.host_us is not None else []
        rows += [("timer", f"{self.timer}, {self.cache} cache"), ("valid", "yes" if self.valid else self.why)]
        cells = "".join(f"<tr><th>{name}</th><td>{_escaped(text)}</td></tr>" for name, text in rows)
        return f"<table><caption>{_escaped(self.name)}</caption>{cells}</table>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
