from collections import Counter

import torch

from kernel_pipeline.timing.stopping import Count
from kernel_pipeline.timing.timers import Rotation
from kernel_pipeline.timing.timers.cpu import CpuTimer

SETS = tuple((torch.full((1000,), float(i)),) for i in range(1, 4))


def test_samples_go_round_the_inputs() -> None:
    seen: Counter[float] = Counter()

    def call(x: torch.Tensor) -> torch.Tensor:
        seen[x[0].item()] += 1
        return x * 2

    samples = CpuTimer().measure(Rotation(call, SETS), Count(5))
    assert samples.timer == "perf_counter"
    assert len(samples.samples_us) == 5
    assert min(samples.samples_us) > 0
    assert samples.canary is None
    assert torch.equal(samples.again(0)[0], SETS[0][0] * 2)
    assert set(seen) == {1.0, 2.0, 3.0}
    assert max(seen.values()) - min(seen.values()) <= 3, "in turn"
