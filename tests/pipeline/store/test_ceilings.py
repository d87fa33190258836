from __future__ import annotations

import pytest

from pipeline.measure.ceiling import NO_OVERHEAD, Ceilings, Overhead, rate


def test_the_overhead_is_taken_off_each_replay_and_each_launch() -> None:
    overhead = Overhead(per_call_us=0.5, per_replay_us=10.0)
    assert overhead.net(time_us=210.0, launches=40) == pytest.approx(5.0 - 0.5)
    assert overhead.net(time_us=220.0, launches=40, replays=2) == pytest.approx(5.0 - 0.5)
    assert NO_OVERHEAD.net(time_us=210.0, launches=40) == 210.0 / 40


def test_a_calibration_gone_wrong_takes_off_half_at_most() -> None:
    assert Overhead(per_call_us=100.0, per_replay_us=0.0).net(time_us=40.0, launches=10) == 2.0


def test_the_bound_is_the_ceiling_that_is_nearer() -> None:
    ceilings = Ceilings(gpu="g", environment="e", copy_gbps=1000.0, matmul_tflops={"float32": 10.0})
    memory = rate(10.0, bytes_=5_000_000, flops=1_000_000, dtype="float32", ceilings=ceilings)
    assert (memory.gbps, memory.tflops) == (pytest.approx(500.0), pytest.approx(0.1))
    assert (memory.bound, memory.ceiling_fraction) == ("memory", pytest.approx(0.5))
    compute = rate(10.0, bytes_=5_000, flops=80_000_000, dtype="float32", ceilings=ceilings)
    assert (compute.bound, compute.ceiling_fraction) == ("compute", pytest.approx(0.8))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_without_a_ceiling_there_is_no_fraction(dtype: str) -> None:
    known = Ceilings(gpu="g", environment="e", copy_gbps=1000.0, matmul_tflops={})
    for ceilings in (None, known):
        unknown = rate(10.0, bytes_=5_000, flops=5, dtype=dtype, ceilings=ceilings)
        assert (unknown.bound, unknown.ceiling_fraction) == (None, None)
        assert unknown.gbps == pytest.approx(0.5)
