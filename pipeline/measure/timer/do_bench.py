"""Triton's own ``do_bench``, for numbers that compare with the field's."""

from __future__ import annotations

from itertools import cycle

from pipeline.measure.stopping import Stopping
from pipeline.measure.timer import Samples, Workload, checked_output, input_bytes

FLUSH_BYTES = 256 << 20
"""What do_bench writes over before each launch (Triton 3.6, get_empty_cache_for_benchmark)."""


class DoBenchTimer:
    """``triton.testing.do_bench`` with its defaults: it writes over the cache before each launch, brackets
    the launch by events, and stops by its own clock (about 100 ms), not by ``stop``."""

    def measure(self, workload: Workload, stop: Stopping) -> Samples:
        """All of do_bench's times."""
        from triton.testing import do_bench

        inputs = cycle(workload.inputs)
        times_ms = do_bench(lambda: workload.call(*next(inputs)), return_mode="all")
        samples_us = tuple(ms * 1e3 for ms in times_ms)
        return Samples("do_bench", samples_us, checked_output(workload), FLUSH_BYTES + input_bytes(workload))
