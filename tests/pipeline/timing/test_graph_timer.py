"""The graph timer on a simulated device: what is captured runs again at each replay, and takes its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count

import pytest
import torch

from pipeline.store.ceilings import NO_OVERHEAD, Overhead
from pipeline.timing.stopping.count import Count
from pipeline.timing.timers import Rotation, Samples, graph
from pipeline.timing.timers.graph import MOST_LAUNCHES, TURN_US, GraphTimer, NotCapturableError, capture, net

KERNEL_US, GAP_US, REPLAY_US = 4.0, 0.5, 10.0
OVERHEAD = Overhead(per_call_us=GAP_US, per_replay_us=REPLAY_US)


@dataclass
class Machine:
    """A device with a clock, and the graph that it captures into."""

    now_us: float = 0.0
    capturing: Graph | None = None
    graphs: list[Graph] = field(default_factory=list)

    def launch(self, run: Callable[[], None]) -> None:
        """Run now, and at each replay of the graph that is captured into."""
        run()
        if self.capturing is not None:
            self.capturing.launches.append(run)


@dataclass
class Graph:
    machine: Machine
    launches: list[Callable[[], None]] = field(default_factory=list)
    replays: int = 0

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.machine.capturing = self
        self.machine.graphs.append(self)

    def capture_end(self) -> None:
        self.machine.capturing = None

    def replay(self) -> None:
        self.replays += 1
        self.machine.now_us += REPLAY_US + len(self.launches) * (KERNEL_US + GAP_US)
        for run in self.launches:
            run()


@dataclass
class Event:
    at_us: float

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return (end.at_us - self.at_us) / 1e3


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(made))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(graph, "_capturing", lambda: None)
    pool = Pool()
    monkeypatch.setattr(graph, "_pool", pool)
    monkeypatch.setattr(graph, "settle", lambda: None)
    monkeypatch.setattr(graph, "recorded", lambda: Event(made.now_us))
    monkeypatch.setattr(graph, "perf_counter", lambda: made.now_us / 1e6)
    return made


class Pool:
    def __call__(self) -> tuple[None, None]:
        return None, None

    def cache_clear(self) -> None:
        pass


def sets_of(number: int) -> tuple[tuple[torch.Tensor, ...], ...]:
    return tuple((torch.full((8,), float(i)),) for i in range(1, number + 1))


def doubling(machine: Machine, seen: Counter[float] | None = None) -> Callable[..., torch.Tensor]:
    """Twice the input, by a launch into new memory."""

    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)

        def run() -> None:
            if seen is not None:
                seen[float(x[0])] += 1
            torch.mul(x, 2, out=out)

        machine.launch(run)
        return out

    return call


def measure(rotation: Rotation, samples: int = 10) -> Samples:
    return GraphTimer(OVERHEAD).measure(rotation, Count(samples))


@pytest.mark.parametrize("sets", [1, 3, 300])
def test_the_overhead_is_taken_off_and_every_set_has_its_turn(machine: Machine, sets: int) -> None:
    seen: Counter[float] = Counter()
    samples = measure(Rotation(doubling(machine, seen), sets_of(sets)))
    assert samples.samples_us == pytest.approx([KERNEL_US] * len(samples.samples_us))
    assert (samples.timer, samples.overhead_us) == ("graph", GAP_US)
    assert len(seen) == sets
    for index in {0, sets - 1}:
        assert torch.equal(samples.again(index)[0], torch.full((8,), 2.0 * (index + 1))), "that set's"
    assert max(len(one.launches) for one in machine.graphs) <= MOST_LAUNCHES


def test_a_turn_goes_round_each_set_as_often_and_about_as_long_as_it_should(machine: Machine) -> None:
    ring = capture(Rotation(doubling(machine), sets_of(7)), 30)
    assert ring.launches == 28
    machine.graphs.clear()
    measure(Rotation(doubling(machine), sets_of(7)))
    turn = sum(len(one.launches) for one in machine.graphs[1:])
    assert turn % 7 == 0
    assert TURN_US / 2 < turn * (KERNEL_US + GAP_US) < TURN_US * 2


def test_all_memory_that_lies_apart_is_gone_over(machine: Machine) -> None:
    assert measure(Rotation(doubling(machine), sets_of(3))).touched_bytes == 3 * 32 + 3 * 32
    same = torch.empty(8)

    def into_the_same(x: torch.Tensor) -> torch.Tensor:
        machine.launch(lambda: same.copy_(x))  # type: ignore[arg-type, return-value]
        return same

    assert measure(Rotation(into_the_same, sets_of(3))).touched_bytes == 3 * 32 + 32


def test_what_only_the_capture_wrote_is_no_output(machine: Machine) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return doubling(machine)(x), (x * 2).to(torch.int32)

    launched, kept = measure(Rotation(call, sets_of(2))).again(0)
    assert torch.equal(launched, torch.full((8,), 2.0))
    assert not (kept == 2).any()


def test_in_place_a_turn_is_one_call(machine: Machine) -> None:
    sets = sets_of(5)

    def call(x: torch.Tensor) -> None:
        def run() -> None:
            x.add_(1)

        machine.launch(run)

    samples = measure(Rotation(call, sets, in_place=True))
    sets[3][0].fill_(1)
    assert samples.again(3)[0] is sets[3][0]
    assert torch.equal(sets[3][0], torch.full((8,), 2.0))
    assert samples.touched_bytes == 5 * 32, "the outputs are the inputs"
    assert sum(len(one.launches) for one in machine.graphs[1:]) == 5, "each set once, however short"


def test_one_more_turn_takes_what_stands_in_the_inputs_then(machine: Machine) -> None:
    sets = sets_of(3)
    samples = measure(Rotation(doubling(machine), sets))
    sets[1][0].fill_(21)
    assert torch.equal(samples.again(1)[0], torch.full((8,), 42.0))


def test_a_call_that_can_not_be_captured_is_said_and_leaves_no_capture(machine: Machine) -> None:
    calls = count()

    def call(x: torch.Tensor) -> torch.Tensor:
        if next(calls):
            raise RuntimeError("operation not permitted when stream is capturing")
        return x

    with pytest.raises(NotCapturableError, match="not permitted"):
        measure(Rotation(call, sets_of(2)))
    assert machine.capturing is None


def test_a_capture_that_finds_no_memory_says_so(machine: Machine) -> None:
    calls = count()

    def call(x: torch.Tensor) -> torch.Tensor:
        if next(calls):
            raise torch.OutOfMemoryError("no room")
        return x

    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        measure(Rotation(call, sets_of(2)))
    assert machine.capturing is None


def test_the_overhead_is_taken_off_each_replay_and_each_launch() -> None:
    overhead = Overhead(per_call_us=0.5, per_replay_us=10.0)
    assert net(overhead, time_us=210.0, launches=40) == pytest.approx(5.0 - 0.5)
    assert net(overhead, time_us=220.0, launches=40, replays=2) == pytest.approx(5.0 - 0.5)
    assert net(NO_OVERHEAD, time_us=210.0, launches=40) == 210.0 / 40


def test_a_calibration_gone_wrong_takes_off_half_at_most() -> None:
    assert net(Overhead(per_call_us=100.0, per_replay_us=0.0), time_us=40.0, launches=10) == 2.0
