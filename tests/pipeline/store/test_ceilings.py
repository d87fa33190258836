import pytest

from kernel_pipeline.contract import Work
from kernel_pipeline.records.ceilings import Ceilings, rate


def ceilings(**tflops: float) -> Ceilings:
    return Ceilings(gpu="g", environment="e", copy_gbps=1000.0, matmul_tflops=tflops)


def test_the_bound_is_the_ceiling_that_is_nearer() -> None:
    memory = rate(10.0, Work(5_000_000, {"float32": 1_000_000}), ceilings(float32=10.0))
    assert (memory.gbps, memory.tflops) == (pytest.approx(500.0), pytest.approx(0.1))
    assert (memory.bytes, memory.flops) == (5_000_000, 1_000_000)
    assert (memory.bound, memory.ceiling_fraction) == ("memory", pytest.approx(0.5))
    compute = rate(10.0, Work(5_000, {"float32": 80_000_000}), ceilings(float32=10.0))
    assert (compute.bound, compute.ceiling_fraction) == ("compute", pytest.approx(0.8))


def test_operations_of_several_arithmetics_take_their_times_together() -> None:
    work = Work(5_000, {"float32": 20_000_000, "bfloat16": 200_000_000})
    found = rate(10.0, work, ceilings(float32=10.0, bfloat16=100.0, float16=1.0))
    assert found.flops == 220_000_000
    assert (found.bound, found.ceiling_fraction) == ("compute", pytest.approx(0.2 + 0.2))


def test_without_a_ceiling_there_is_no_fraction() -> None:
    for known in (None, ceilings(), ceilings(float32=1.0)):
        unknown = rate(10.0, Work(5_000, {"float16": 5, "float32": 1}), known)
        assert (unknown.bound, unknown.ceiling_fraction) == (None, None)
        assert unknown.gbps == pytest.approx(0.5)


def test_no_operations_leave_memory_as_the_limit() -> None:
    copy = rate(10.0, Work(5_000_000, {}), ceilings())
    assert (copy.bound, copy.ceiling_fraction, copy.tflops) == ("memory", pytest.approx(0.5), 0.0)


def test_what_was_measured_without_cores_is_no_ceiling() -> None:
    disturbed = ceilings(float32=1e-4).replace(is_disturbed=True)
    found = rate(10.0, Work(5_000, {"float32": 80_000_000}), disturbed)
    assert (found.bound, found.ceiling_fraction, found.tflops) == (None, None, pytest.approx(8.0))
