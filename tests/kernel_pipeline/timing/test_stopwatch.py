from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from kernel_pipeline.loading import Tensors
from kernel_pipeline.records.measurement import State
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.timing import stopwatch
from kernel_pipeline.timing.stopwatch import (
    ALIGNMENT,
    COLD_FACTOR,
    MOST_SETS,
    Stopwatch,
    ring,
    rolls,
    shifted,
    span_of,
    step_of,
)
from kernel_pipeline.timing.timers import Samples

CPU = torch.device("cpu")
SHAPES = [(1,), (7,), (129,), (3, 5, 7), (128, 4), (0,), (0, 3), ()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_ring_holds_the_same_values_in_memory_of_their_own(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, shape, generator=generator).to(dtype)
    y = torch.rand(5, generator=generator)
    sets = ring((x, y), 6, None)
    assert len(sets) == 6
    assert sets[0][0] is x
    assert sets[0][1] is y
    assert len({tuple(b.tolist()) for _, b in sets}) == 5, "each set in another order, as many as there are"
    for a, b in sets:
        assert torch.equal(values(a), values(x))
        assert torch.equal(values(b), values(y))
        assert a.shape == x.shape
        assert a.dtype == x.dtype
        assert a.is_contiguous()
    memory = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for inputs in sets for t in inputs if t.numel())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(memory))


def values(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values, sorted."""
    return x.flatten().sort().values


@pytest.mark.parametrize("span", [2, 3, 8, 9, 10, 1000])
@pytest.mark.parametrize("count", [1, 2, 8, 9, 50, 999])
@pytest.mark.parametrize("first", [0, 1])
def test_a_roll_is_the_same_alone_and_among_others(span: int, count: int, first: int) -> None:
    x = torch.arange(float(span)).to(torch.bfloat16)
    out = torch.empty(count, span, dtype=x.dtype)
    rolls(x, count, out, first)
    step = step_of(span, first + count)
    for index, row in enumerate(out):
        assert torch.equal(row, shifted(x, (first + index) * step))
    assert len({tuple(row.tolist()) for row in out}) == min(count, span)


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(60.0).reshape(6, 10)[:, :7],
        torch.arange(60.0).reshape(6, 10)[2:, 3:],
        torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        torch.arange(20)[::3],
        torch.arange(4.0)[None].expand(3, 4),
        torch.tensor(7.0),
    ],
    ids=["transposed", "padded", "within another", "permuted", "every third", "expanded", "no dimension"],
)
def test_copies_have_the_strides_of_the_tensor_they_are_of(x: torch.Tensor) -> None:
    first, *copies = (inputs[0] for inputs in ring((x,), 4, None))
    assert first is x
    for copy in copies:
        assert torch.equal(spanned(copy), spanned(x))
        assert copy.stride() == x.stride()
        assert copy.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        assert copy.data_ptr() % 64 == 0
    spans = sorted((copy.data_ptr(), copy.data_ptr() + reach(copy)) for copy in copies)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans)), "none lies over another"


def spanned(x: torch.Tensor) -> torch.Tensor:
    """Return the values in the memory span of a tensor, sorted."""
    return x.as_strided((span_of(x),), (1,)).sort().values


def reach(x: torch.Tensor) -> int:
    """Return the bytes from the start of the first element to the end of the last one."""
    return (1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))) * x.itemsize


@pytest.mark.parametrize("columns", [1, 31, 128, 781])
def test_copies_are_aligned_as_tensors_are(columns: int) -> None:
    """A vectorized kernel takes another path for misaligned data."""
    copies = [inputs[0].data_ptr() for inputs in ring((torch.rand(3, columns),), 9, None)[1:]]
    assert {(address - copies[0]) % ALIGNMENT for address in copies} == {0}
    assert copies[0] % 64 == 0


def sets_at(size: int, cache: str) -> int:
    """Time a call on a vector of this size. Return the number of input sets that it got."""
    x = torch.rand(size)
    seen: set[int] = set()

    def call(given: torch.Tensor) -> torch.Tensor:
        seen.add(given.data_ptr())
        return given * 1

    settings = TimingSettings.from_dict(
        {"cache": cache, "stopping": "budget", "max_seconds": 0.2, "min_samples": 3}
    )
    Stopwatch(CPU, settings, pytest.fail).time(call, (x,), 2 * x.nbytes)
    return len(seen)


def test_a_cold_ring_exceeds_the_cache_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "last_level_cache", lambda device: 1 << 20)
    size = 10_000
    sets = sets_at(size, "cold")
    assert sets * 4 * size >= COLD_FACTOR << 20, "by its inputs: the outputs may all lie in one place"
    assert (sets - 1) * 4 * size < COLD_FACTOR << 20, "and by no more than it needs"


def test_a_hot_measurement_and_one_larger_than_the_cache_have_one_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stopwatch, "last_level_cache", lambda device: 1 << 20)
    assert sets_at(100, "hot") == 1
    assert sets_at(COLD_FACTOR << 18, "cold") == 1


def test_the_smallest_problem_has_no_more_sets_than_memory_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "last_level_cache", lambda device: 1 << 30)
    made: list[int] = []

    def counted(
        inputs: tuple[torch.Tensor, ...], sets: int, another: None
    ) -> tuple[tuple[torch.Tensor, ...], ...]:
        made.append(sets)
        return (inputs,)

    monkeypatch.setattr(stopwatch, "ring", counted)
    sets_at(1, "cold")
    assert made == [MOST_SETS]


def test_a_number_is_called_cold_only_if_enough_memory_was_gone_over(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch(CPU, TimingSettings(stopping="count", min_samples=3), pytest.fail)
    x = torch.rand(1000)

    def cache(bytes_: int) -> str:
        monkeypatch.setattr(stopwatch, "last_level_cache", lambda device: bytes_)
        samples, _ = watch.time(torch.neg, (x,), 2 * x.nbytes)
        return watch.cache(samples)

    assert cache(1 << 20) == "cold"
    assert cache(MOST_SETS * x.nbytes) == "hot", "no ring has sets enough for this one"
    watch.settings = TimingSettings(stopping="count", min_samples=3, cache="hot")
    assert cache(1) == "hot", "as it was asked for"


class Scripted:
    """A monitor that returns these throttle reasons one by one. The last one repeats."""

    def __init__(self, *throttle: str | None) -> None:
        self.throttle = list(throttle)
        self.readings = 0

    def read(self) -> State:
        self.readings += 1
        return State(throttle=self.throttle.pop(0) if len(self.throttle) > 1 else self.throttle[0])


@pytest.mark.parametrize(
    ("throttle", "times", "told", "valid"),
    [
        # One reading before and one after the samples.
        ((None, None), 1, None, True),
        ((None, "sw_power_cap", None, None), 2, None, True),
        # The device rests until it is no longer throttled.
        (("hw_slowdown", "hw_slowdown", None, None), 1, None, True),
        # The device is throttled again for another reason.
        ((None, "sw_power_cap", None, "hw_thermal_slowdown"), 2, "hw_thermal_slowdown", False),
        # The device is throttled however long it rests.
        (("sw_power_cap",), 2, "sw_power_cap", False),
    ],
)
def test_what_was_timed_while_held_back_is_timed_again_after_a_rest_and_then_marked(
    throttle: tuple[str | None, ...],
    times: int,
    told: str | None,
    valid: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed: list[torch.Tensor] = []
    on_cpu = Stopwatch._on_cpu

    def on_gpu(self: Stopwatch, call: Callable[..., torch.Tensor], inputs: Tensors, *rest: Any) -> Samples:
        timed.append(inputs[0])
        return on_cpu(self, call, inputs, False, None)

    monkeypatch.setattr(Stopwatch, "_on_gpu", on_gpu)
    monkeypatch.setattr(stopwatch, "REST_S", 0.05)
    monkeypatch.setattr(stopwatch, "LOOK_S", 0.001)
    settings = TimingSettings(stopping="count", min_samples=3)
    watch = Stopwatch(CPU, settings, pytest.fail)
    monkeypatch.setattr(watch, "_monitor", Scripted(*throttle))
    samples, state = watch.time(torch.square, (torch.rand(64),), 512)
    assert len(timed) == times
    assert len(samples.samples_us) == 3
    assert (state.throttle, state.valid) == (told, valid)
    assert (state.invalid_reason is None) == valid
    if told:
        assert told in str(state.invalid_reason)


@pytest.mark.parametrize(
    ("held_back_s", "is_free"),
    [(0.0, True), (1.9, True), (2.2, False)],
    ids=["at once", "within the longest rest", "beyond it"],
)
def test_a_device_that_is_held_back_rests_for_two_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch, held_back_s: float, is_free: bool
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Held:
        def read(self) -> State:
            return State(throttle=None if now >= held_back_s else "sw_power_cap")

    monkeypatch.setattr(stopwatch, "sleep", sleep)
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: now)
    state = Stopwatch._rested(Held())  # type: ignore[arg-type]
    assert (state.throttle is None) is is_free
    assert now == pytest.approx(min(held_back_s, 2.0), abs=0.06), "and no longer than it has to"


def test_a_call_that_writes_over_its_inputs_is_made_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "last_level_cache", lambda device: 1 << 12)
    x = torch.rand(100)
    watch = Stopwatch(CPU, TimingSettings(stopping="count", min_samples=3), pytest.fail)
    samples, _ = watch.time(lambda x: x.add_(1), (x,), x.nbytes, True)
    set_ = samples.rotation.inputs[2]
    set_[0].fill_(7)
    assert samples.again(2) == set_
    assert torch.equal(set_[0], torch.full((100,), 8.0)), "as one call leaves it, however many were timed"
