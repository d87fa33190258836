"""The graph timer on a simulated device. Captured launches run at each replay and take device time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import pytest
import torch

from kernel_pipeline.records.ceilings import Canary
from kernel_pipeline.records.measurement import State
from kernel_pipeline.timing.launch_gap import LAUNCHES, LaunchGap
from kernel_pipeline.timing.stopping import Count
from kernel_pipeline.timing.timers import Reading, Rotation, Samples, cupti, event, graph
from kernel_pipeline.timing.timers import capture as capturing
from kernel_pipeline.timing.timers.capture import MOST_LAUNCHES, NotCapturableError, Ring, capture
from kernel_pipeline.timing.timers.graph import TRIES, TURN_US, GraphTimer

KERNEL_US, GAP_US, FLUSH_US = 4.0, 0.5, 60.0
FAST = Canary(fast_us=KERNEL_US, duration_us=KERNEL_US)


@dataclass
class Machine:
    """A device with a clock, the graph of the current capture, and the mode of its launch gap. A capture
    makes the mode slow, and ``set_mode`` makes it fast."""

    now_us: float = 0.0
    capturing: Graph | None = None
    graphs: list[Graph] = field(default_factory=list)
    is_slow: bool = False
    modes_set: int = 0
    flushed_bytes: list[int] = field(default_factory=list)

    def set_mode(self) -> None:
        self.modes_set += 1
        self.is_slow = False

    def flush(self, bytes_: int) -> None:
        self.now_us += FLUSH_US
        self.flushed_bytes.append(bytes_)

    def launch(self, run: Callable[[], None]) -> None:
        """Run now, and at each replay of the graph that is being captured."""
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
        self.machine.is_slow = True

    def capture_end(self) -> None:
        self.machine.capturing = None

    def replay(self) -> None:
        self.replays += 1
        self.machine.now_us += len(self.launches) * (KERNEL_US + GAP_US * self.machine.is_slow)
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
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(capturing, "_capturing", lambda device: None)
    monkeypatch.setattr(capturing, "_pool", Pool())
    for module in (graph, event):
        monkeypatch.setattr(module, "recorded", lambda: Event(made.now_us))
    monkeypatch.setattr(graph, "cache_flush", lambda bytes_: partial(made.flush, bytes_))
    monkeypatch.setattr(graph, "perf_counter", lambda: made.now_us / 1e6)
    return made


class Pool:
    def __call__(self, device: int) -> tuple[None, None]:
        return None, None

    def cache_clear(self) -> None:
        pass


def sets_of(number: int) -> tuple[tuple[torch.Tensor, ...], ...]:
    return tuple((torch.full((8,), float(i)),) for i in range(1, number + 1))


def doubling(machine: Machine, seen: Counter[float] | None = None) -> Callable[..., torch.Tensor]:
    """Return a function that doubles its input by a launch into new memory."""

    def call(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)

        def run() -> None:
            if seen is not None:
                seen[float(x[0])] += 1
            torch.mul(x, 2, out=out)

        machine.launch(run)
        return out

    return call


class Gap(LaunchGap):
    """The launch gap of a machine whose canary takes as long as any other launch."""

    def __init__(self, machine: Machine, known: Canary | None = FAST) -> None:
        super().__init__(machine.set_mode)
        self.known = known
        self._ring = Ring([Graph(machine, [lambda: None] * LAUNCHES)], LAUNCHES, [])  # type: ignore[list-item]


def measure(machine: Machine, rotation: Rotation, samples: int = 10) -> Samples:
    return GraphTimer(Gap(machine)).measure(rotation, Count(samples))


def test_a_flush_comes_before_each_timed_turn_and_is_not_timed(machine: Machine) -> None:
    launched: list[tuple[int, float]] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        machine.launch(lambda: launched.append((len(machine.flushed_bytes), float(x[0]))))
        return x

    samples = GraphTimer(Gap(machine), 1000).measure(Rotation(call, sets_of(3)), Count(10))
    assert samples.samples_us == pytest.approx([KERNEL_US] * 10)
    assert samples.launches == 3, "one for each set, or the second would find its input in the cache"
    assert machine.flushed_bytes == [1000] * 10
    for flushes in range(1, 10):
        assert [of for after, of in launched if after == flushes] == [1, 2, 3]
    assert samples.touched_bytes >= 1000
    assert samples.flush is not None, "who replays the turn again flushes, too"


@pytest.mark.parametrize("sets", [1, 3, 300])
def test_the_mode_is_set_after_the_captures_and_every_set_has_its_turn(machine: Machine, sets: int) -> None:
    seen: Counter[float] = Counter()
    samples = measure(machine, Rotation(doubling(machine, seen), sets_of(sets)))
    assert samples.samples_us == pytest.approx([KERNEL_US] * len(samples.samples_us)), "nothing is subtracted"
    assert (samples.timer, machine.modes_set) == ("graph", 1)
    assert samples.canary == Reading(pytest.approx(KERNEL_US), pytest.approx(KERNEL_US))
    assert len(seen) == sets
    for index in {0, sets - 1}:
        assert torch.equal(samples.again(index)[0], torch.full((8,), 2.0 * (index + 1))), "that set's"
    assert max(len(one.launches) for one in machine.graphs) <= MOST_LAUNCHES


def test_a_turn_goes_round_each_set_as_often_and_about_as_long_as_it_should(machine: Machine) -> None:
    ring = capture(Rotation(doubling(machine), sets_of(7)), 30)
    assert ring.launches == 28
    machine.graphs.clear()
    measure(machine, Rotation(doubling(machine), sets_of(7)))
    turn = sum(len(one.launches) for one in machine.graphs[1:])
    assert turn % 7 == 0
    assert TURN_US / 2 < turn * KERNEL_US < TURN_US * 2


def test_all_memory_that_lies_apart_is_gone_over(machine: Machine) -> None:
    assert measure(machine, Rotation(doubling(machine), sets_of(3))).touched_bytes == 3 * 32 + 3 * 32
    same = torch.empty(8)

    def into_the_same(x: torch.Tensor) -> torch.Tensor:
        machine.launch(lambda: same.copy_(x))  # type: ignore[arg-type, return-value]
        return same

    assert measure(machine, Rotation(into_the_same, sets_of(3))).touched_bytes == 3 * 32 + 32


def test_what_only_the_capture_wrote_is_no_output(machine: Machine) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return doubling(machine)(x), (x * 2).to(torch.int32)

    launched, kept = measure(machine, Rotation(call, sets_of(2))).again(0)
    assert torch.equal(launched, torch.full((8,), 2.0))
    assert not (kept == 2).any()


def test_in_place_a_turn_is_one_call(machine: Machine) -> None:
    sets = sets_of(5)

    def call(x: torch.Tensor) -> None:
        def run() -> None:
            x.add_(1)

        machine.launch(run)

    samples = measure(machine, Rotation(call, sets, in_place=True))
    sets[3][0].fill_(1)
    assert samples.again(3)[0] is sets[3][0]
    assert torch.equal(sets[3][0], torch.full((8,), 2.0))
    assert samples.touched_bytes == 5 * 32, "the outputs are the inputs"
    assert sum(len(one.launches) for one in machine.graphs[1:]) == 5, "each set once, however short"


def test_one_more_turn_takes_what_stands_in_the_inputs_then(machine: Machine) -> None:
    sets = sets_of(3)
    samples = measure(machine, Rotation(doubling(machine), sets))
    sets[1][0].fill_(21)
    assert torch.equal(samples.again(1)[0], torch.full((8,), 42.0))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("operation not permitted when stream is capturing"), NotCapturableError),
        (torch.OutOfMemoryError("no room"), torch.OutOfMemoryError),
    ],
)
def test_a_call_that_fails_while_it_is_captured_is_said_and_leaves_no_capture(
    machine: Machine, error: Exception, said: type[Exception]
) -> None:
    calls = count()

    def call(x: torch.Tensor) -> torch.Tensor:
        if next(calls):
            raise error
        return x

    with pytest.raises(said, match=str(error)):
        measure(machine, Rotation(call, sets_of(2)))
    assert machine.capturing is None


def switching(machine: Machine, times: int) -> Rotation:
    """Return a call that makes the mode slow during each of the first ``times`` tries. It counts tries by
    the machine's mode settings."""
    slowed: set[int] = set()

    def call(x: torch.Tensor) -> torch.Tensor:
        def run() -> None:
            if machine.modes_set and len(slowed | {machine.modes_set}) <= times:
                slowed.add(machine.modes_set)
                machine.is_slow = True

        machine.launch(run)
        return x

    return Rotation(call, sets_of(3))


@pytest.mark.parametrize("times", [1, TRIES - 1])
def test_samples_whose_canary_is_late_are_taken_again(machine: Machine, times: int) -> None:
    samples = measure(machine, switching(machine, times))
    assert machine.modes_set == times + 1
    assert samples.samples_us == pytest.approx([KERNEL_US] * len(samples.samples_us))


def test_a_mode_that_does_not_stay_is_seen_by_the_canary_after_the_samples(machine: Machine) -> None:
    gap = Gap(machine)
    samples = GraphTimer(gap).measure(switching(machine, TRIES + 1), Count(10))
    assert machine.modes_set == TRIES
    assert samples.canary is not None
    assert (samples.canary.before_us, samples.canary.after_us) == pytest.approx(
        (KERNEL_US, KERNEL_US + GAP_US)
    )
    assert gap.is_late(samples.canary, KERNEL_US)
    assert gap.excess_us(samples.canary) == pytest.approx(GAP_US)


LATE, IN_TIME = Reading(1.98, 1.64), Reading(1.60, 1.64)


@pytest.mark.parametrize(
    ("known", "reading", "excess_us", "is_late"),
    [
        (Canary(fast_us=1.63, duration_us=1.632), IN_TIME, 0.0, False),
        (Canary(fast_us=1.63, duration_us=1.632), LATE, 0.35, True),
        # The fast mode cannot be reached: CUPTI's duration is below the canary's best time.
        (Canary(fast_us=1.98, duration_us=1.632), LATE, 1.98 - 1.632, False),
        # Without CUPTI's duration it is unknown whether the fast mode can be reached.
        (Canary(fast_us=1.63), IN_TIME, 1.64, False),
        (None, LATE, 0.0, False),
    ],
)
def test_what_the_canary_says(
    known: Canary | None, reading: Reading, excess_us: float, is_late: bool
) -> None:
    gap = LaunchGap(pytest.fail)
    gap.known = known
    assert gap.excess_us(reading) == pytest.approx(excess_us)
    assert gap.is_late(reading, time_us=5.0) is is_late
    assert not gap.is_late(reading, time_us=500.0), "it adds nothing to a time as long as this"


@dataclass
class Clock:
    sm_clock_mhz: int | None

    def read(self) -> State:
        return State(sm_clock_mhz=self.sm_clock_mhz)


@pytest.mark.parametrize(
    ("clock", "is_found_anew"), [(1980, False), (1965, False), (1500, True), (None, False)]
)
def test_at_another_clock_the_canary_is_found_anew(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, clock: int | None, is_found_anew: bool
) -> None:
    monkeypatch.setattr(cupti, "stamped", lambda run, calls: None)
    gap = Gap(machine)
    known = Canary(fast_us=1.6, duration_us=1.6, sm_clock_mhz=1980)
    gap.know(known, Clock(clock))  # type: ignore[arg-type]
    assert (gap.known != known) is is_found_anew
    if is_found_anew:
        assert gap.known == Canary(fast_us=KERNEL_US, sm_clock_mhz=clock)
