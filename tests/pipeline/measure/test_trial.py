"""One point in this process."""

from __future__ import annotations

import torch._dynamo
from torch._dynamo.utils import counters

from kernels.point import Point
from pipeline.measure.ceiling import NO_OVERHEAD
from pipeline.measure.settings import TimingSettings
from pipeline.measure.trial import Trial


def test_torch_compile_compiles_once_a_shape() -> None:
    """Verified and timed, it is called under different flags and from different places."""
    torch._dynamo.reset()
    counters.clear()
    trial = Trial("cpu", TimingSettings(stopping="count", min_samples=3), seed=0)
    for size in (17, 33):
        outcome = trial.run(Point("square", "torch_compile", size, "float32"), NO_OVERHEAD)
        assert outcome.status == "ok", outcome.error
    assert counters["stats"]["unique_graphs"] == 2
