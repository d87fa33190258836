from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
import torch

from pipeline.measure.stopping.count import Count
from pipeline.measure.timer import Workload, checked_output
from pipeline.measure.timer.cpu import CpuTimer

SETS = tuple((torch.full((1000,), float(i)),) for i in range(1, 4))


def test_samples_go_round_the_inputs_and_the_output_is_the_first_sets() -> None:
    seen: Counter[float] = Counter()

    def call(x: torch.Tensor) -> torch.Tensor:
        seen[x[0].item()] += 1
        return x * 2

    samples = CpuTimer().measure(Workload(call, SETS), Count(5))
    assert samples.timer == "perf_counter"
    assert len(samples.samples_us) == 5
    assert min(samples.samples_us) > 0
    assert samples.overhead_us == 0
    assert torch.equal(samples.output, SETS[0][0] * 2)
    assert set(seen) == {1.0, 2.0, 3.0}
    assert max(seen.values()) - min(seen.values()) <= 3, "in turn"


@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_neither_stale_memory_nor_a_kept_tensor_passes_for_an_output(size: int) -> None:
    kept = torch.ones(size)
    assert checked_output(Workload(lambda x: kept, SETS)).isnan().all()

    calls = count()

    def writes_at_first(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(size)
        return out.fill_(1) if next(calls) == 0 else out

    checked = checked_output(Workload(writes_at_first, SETS))
    assert not torch.equal(checked, torch.ones(size))


def test_what_is_no_tensor_is_handed_on_for_the_verification_to_say() -> None:
    assert checked_output(Workload(lambda x: None, SETS)) is None  # type: ignore[arg-type, return-value, func-returns-value]
