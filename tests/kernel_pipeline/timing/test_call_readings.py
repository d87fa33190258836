"""The host's time of calls, on a simulated GPU."""

import pytest
import torch

from kernel_pipeline.timing import call_readings


class Machine:
    """A host's clock, and a GPU that starts the next call when it is asked to wait."""

    def __init__(self, host_us: list[float], device_us: float) -> None:
        self.now_us = 0.0
        self.queued = 0
        self.deepest = 0
        self.host_us = iter(host_us)
        self.device_us = device_us

    def call(self, x: torch.Tensor) -> torch.Tensor:
        self.now_us += next(self.host_us)
        self.queued += 1
        self.deepest = max(self.deepest, self.queued)
        return x

    def synchronize(self) -> None:
        self.now_us += self.queued * self.device_us
        self.queued = 0


@pytest.mark.parametrize(("device_us", "count"), [(5.0, call_readings.HOST_CALLS), (30_000.0, 4), (2e6, 1)])
def test_the_host_time_is_the_median_of_calls_that_find_the_gpu_idle(
    device_us: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes 8 us on the host, and the first call 900 us; the GPU's time does not count."""
    machine = Machine([900.0, *[8.0] * (count - 1)], device_us)
    monkeypatch.setattr(call_readings, "perf_counter", lambda: machine.now_us / 1e6)
    monkeypatch.setattr(call_readings.torch.cuda, "synchronize", machine.synchronize)
    found = call_readings.host_us(machine.call, (torch.ones(1),))
    assert found == pytest.approx(900.0 if count == 1 else 8.0)
    assert (list(machine.host_us), machine.deepest, machine.queued) == ([], 1, 0)
