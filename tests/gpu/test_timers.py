"""Every timer on a real GPU: its inputs, its fallback, and the output that is checked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import sleep

import pytest
import torch

from kernel_pipeline.machine import device
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.timing.launch_gap import SecondContext
from kernel_pipeline.timing.stopwatch import COLD_FACTOR, FLUSHED_SETS, MOST_SETS, Stopwatch, last_level_cache
from kernel_pipeline.timing.timers import Samples
from kernel_pipeline.timing.timers.event import MOST_WRITES
from pipeline import ROOT
from tests.processes import completed

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
ELEMENTS = 1 << 18

Call = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker, which is told its one GPU by UUID."""
    uuid = device.resolve("cuda").uuid
    assert uuid is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)


@cache
def second_context() -> SecondContext:
    return SecondContext(CUDA)


def stopwatch(settings: TimingSettings) -> Stopwatch:
    return Stopwatch(CUDA, settings, second_context().set_mode)


def time(call: Call, x: torch.Tensor, **settings: object) -> Samples:
    chosen = TimingSettings.from_dict({"min_samples": 5, "max_seconds": 0.05} | settings)
    samples, state = stopwatch(chosen).time(call, (x,), 2 * x.nbytes)
    torch.cuda.synchronize()
    assert state.sm_clock_mhz is None or state.sm_clock_mhz > 0
    assert min(samples.samples_us) > 0
    return samples


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def synchronizes(x: torch.Tensor) -> torch.Tensor:
    x.sum().item()
    return x * 2


def goes_over_the_host(x: torch.Tensor) -> torch.Tensor:
    return (x.cpu() * 2).cuda()


def recording(seen: dict[int, int]) -> Call:
    """``double`` that notes where its inputs lie and how large they and its outputs are."""

    def call(x: torch.Tensor) -> torch.Tensor:
        out = x * 2
        seen[x.data_ptr()] = x.nbytes + out.nbytes
        return out

    return call


@pytest.mark.parametrize("cache", ["cold", "hot"])
@pytest.mark.parametrize("timer", ["graph", "event", "do_bench", "wall"])
def test_every_timer_says_its_name_and_gives_the_right_output(timer: str, cache: str) -> None:
    x = torch.randn(ELEMENTS, device=CUDA)
    samples = time(double, x, timer=timer, cache=cache)
    assert samples.timer == timer
    assert torch.equal(samples.again(0)[0], x * 2)


@pytest.mark.parametrize("elements", [2001, ELEMENTS, 3 * ELEMENTS + 1])
def test_a_cold_graph_goes_over_three_times_the_cache(elements: int) -> None:
    seen: dict[int, int] = {}
    samples = time(recording(seen), torch.randn(elements, device=CUDA))
    assert samples.timer == "graph"
    assert sum(seen.values()) >= COLD_FACTOR * last_level_cache(CUDA)


def test_a_graph_whose_outputs_lie_in_one_place_is_not_called_cold() -> None:
    x = torch.randn(ELEMENTS, device=CUDA)
    kept = torch.empty_like(x)

    def overwrites(given: torch.Tensor) -> torch.Tensor:
        return torch.mul(given, 2, out=kept)

    watch = stopwatch(TimingSettings(min_samples=5, max_seconds=0.05))
    for call, found in ((double, "cold"), (overwrites, "hot")):
        samples, _ = watch.time(call, (x,), 2 * x.nbytes)
        assert samples.timer == "graph"
        assert watch.cache(samples) == found


def test_a_hot_graph_has_one_input() -> None:
    seen: dict[int, int] = {}
    assert time(recording(seen), torch.randn(ELEMENTS, device=CUDA), cache="hot").timer == "graph"
    assert len(seen) == 1


@pytest.mark.parametrize("call", [synchronizes, goes_over_the_host])
def test_what_no_graph_can_hold_is_timed_by_events_and_the_next_call_by_a_graph(call: Call) -> None:
    x = torch.randn(ELEMENTS, device=CUDA)
    samples = time(call, x)
    assert samples.timer == "event"
    assert torch.equal(samples.again(0)[0], x * 2)
    after = time(double, x)
    assert after.timer == "graph"
    assert torch.equal(after.again(0)[0], x * 2)


def test_a_problem_too_small_for_a_ring_is_timed_by_a_graph_after_flushes() -> None:
    x = torch.randn(4, device=CUDA)
    assert COLD_FACTOR * last_level_cache(CUDA) / (2 * x.nbytes) > MOST_SETS
    watch = stopwatch(TimingSettings(min_samples=5, max_seconds=0.05))
    samples, _ = watch.time(double, (x,), 2 * x.nbytes)
    assert samples.timer == "graph"
    assert samples.launches == len(samples.rotation.inputs) == FLUSHED_SETS, "each set once after a flush"
    assert watch.cache(samples) == "cold"
    assert torch.equal(samples.again(0)[0], x * 2)


def test_the_cache_is_written_over_until_a_slow_host_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0
    zero = torch.Tensor.zero_

    def counted(flush: torch.Tensor) -> torch.Tensor:
        nonlocal written
        written += 1
        return zero(flush)

    def slow_to_launch(given: torch.Tensor) -> torch.Tensor:
        sleep(0.01)
        return given * 2

    monkeypatch.setattr(torch.Tensor, "zero_", counted)
    samples = time(slow_to_launch, torch.randn(ELEMENTS, device=CUDA), timer="event")
    assert written >= MOST_WRITES * len(samples.samples_us)


@pytest.mark.parametrize("timer", ["graph", "event", "do_bench", "wall"])
def test_an_output_that_is_not_written_anew_is_not_right(timer: str) -> None:
    x = torch.randn(ELEMENTS, device=CUDA)
    kept = x * 2

    def remembers(given: torch.Tensor) -> torch.Tensor:
        given * 2
        return kept

    assert time(remembers, x, timer=timer).again(0)[0].isnan().all()


@pytest.mark.parametrize("timer", ["graph", "event", "do_bench", "wall"])
def test_a_call_that_writes_over_its_input_is_made_once_again(timer: str) -> None:
    x = torch.randn(ELEMENTS, device=CUDA)
    before = x.clone()
    chosen = TimingSettings(min_samples=5, max_seconds=0.05, timer=timer)
    samples, _ = stopwatch(chosen).time(lambda given: given.mul_(1.5), (x,), x.nbytes, True)
    x.copy_(before)
    assert samples.timer == timer
    (out,) = samples.again(0)
    torch.cuda.synchronize()
    assert torch.equal(out, before * 1.5)


@pytest.mark.alone
def test_the_command_measures_by_every_timer_and_cupti(tmp_path: Path) -> None:
    words = ["kernel=square", "preset=smoke", "size=1024", "repeats=2", "device=cuda"]
    done = completed(
        [sys.executable, "-m", "pipeline.benchmarks", "timers", *words, f"output={tmp_path}"], cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = tmp_path.glob("timers/square/*.json")
    rows = json.loads(path.read_text())
    timers = ["graph", "event", "do_bench", "wall", "wall_no_sync"]
    assert [(row["problem"]["rows"], row["timer"]) for row in rows] == [(1024, timer) for timer in timers]
    assert all(row["median_us"] > 0 for row in rows)
    for row in rows:
        if row["timer"] == "graph" and row["cupti_us"] is not None:
            assert row["median_us"] == pytest.approx(row["cupti_us"], rel=0.1)


def test_an_error_of_the_call_is_raised_as_it_is() -> None:
    x = torch.randn(ELEMENTS, device=CUDA)

    def allocates(given: torch.Tensor) -> torch.Tensor:
        return torch.empty(1 << 45, device=CUDA)

    with pytest.raises(torch.OutOfMemoryError):
        time(allocates, x)
    assert time(double, x).timer == "graph", "and the process goes on"
