"""Triton's ``do_bench``, for times that are comparable with published times."""

from __future__ import annotations

from functools import partial
from itertools import cycle

from ..stopping import Stopping
from . import Rotation, Samples, checked_outputs, input_bytes

FLUSH_BYTES = 256 << 20
"""The bytes that do_bench overwrites before each launch (Triton 3.6, get_empty_cache_for_benchmark)."""


class DoBenchTimer:
    """Times calls by ``triton.testing.do_bench`` with its defaults. It flushes the cache before each launch,
    brackets the launch by events, and stops after about 100 ms, not by ``stop``."""

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Return all times of do_bench as samples."""
        from triton.testing import do_bench

        inputs = cycle(rotation.inputs)
        times_ms = do_bench(lambda: rotation.call(*next(inputs)), return_mode="all")
        samples_us = tuple(ms * 1e3 for ms in times_ms)
        touched = FLUSH_BYTES + input_bytes(rotation)
        return Samples("do_bench", samples_us, rotation, partial(checked_outputs, rotation), touched)
