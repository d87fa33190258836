"""Launches as a GPU's trace holds them."""

from __future__ import annotations

from pipeline.inspection import launches
from tests.pipeline.inspection.traces import trace_of_a_gpu


def test_launches_belong_to_the_range_that_launched_them() -> None:
    found = launches.parse(trace_of_a_gpu())
    assert {key: [one.name for one in made] for key, made in found.items()} == {
        "aa": ["void at::native::vectorized_elementwise_kernel<4, pow>(int, float)"],
        "bb": ["mul", "tanh", "mul"],
    }
    (one,) = found["aa"]
    assert (one.threads, one.blocks, one.registers, one.shared, one.duration_us) == (128, 128, 22, 48, 3.5)
