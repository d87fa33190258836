"""Time a call by given settings: choose the timer, keep the cache cold or hot, and record the device's
state."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from math import ceil, inf
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, Literal

import torch

from ..loading import Tensors
from ..records.ceilings import Canary
from ..records.measurement import State
from ..records.settings import TimingSettings
from .launch_gap import LaunchGap, SetMode
from .monitor import Monitor
from .stopping import Budget, Confidence, Count, Either, Stopping
from .timers import Rotation, Samples, Timer, capture
from .timers.capture import NotCapturableError
from .timers.cpu import CpuTimer
from .timers.do_bench import DoBenchTimer
from .timers.event import EventTimer
from .timers.graph import GraphTimer
from .timers.wall import WallTimer

Call = Callable[..., Any]

Another = Callable[[int], Tensors]
"""``another(number)`` returns inputs of the same problem; they differ for each number from 1 on."""

COLD_FACTOR = 3
"""The inputs and outputs of a cold measurement's ring are at least this many times the last-level cache."""

LARGE_FACTOR = 32
"""That multiple for a large ring. A cache keeps part of a ring that is loaded with hints: on an H200
layernorm by torch.compile took 5.9 us over 180 MB, 6.2 over 600 MB and 7.1 over 1.2 GB or more."""

MOST_SETS = 1 << 14
"""The maximum number of input sets in a ring. For problems that would need more, a GPU's cache is flushed
before each turn of a ring of ``FLUSHED_SETS``; on a CPU they run partly from the cache."""

FLUSHED_SETS = 1 << 9
"""Input sets in a ring before whose turns the cache is flushed."""

FEW_COPIES = 8
"""Up to this many copies are written one by one. Large tensors need few copies, and writing all in one launch
would need a temporary of about the same size."""

MAKE_S = 0.05
"""Seconds spent on making new inputs for a ring; further sets are copies."""

FEWEST_MADE = 3
"""The minimum number of distinct sets in a ring, however long they take to make. With two, the last set could
equal the first, which follows it."""

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by element size in bytes."""

ALIGNMENT = 512
"""The alignment of torch's CUDA allocator, in bytes."""

IDLE_S = 0.3
"""After this many seconds without a measurement a GPU may have lowered its clocks."""

WAKE_S = 0.1
"""Seconds of work that raise the clocks again: after three idle seconds an H200 was 1 % slow for 30 ms."""

WAKE_BYTES = 256 << 20

REST_S = 2.0
"""The longest wait, in seconds, for a throttled GPU to recover before it is sampled."""

LOOK_S = 0.05
"""Seconds between two readings of a throttled GPU's state."""


class Stopwatch:
    """Times calls on one device of this process. ``set_mode`` sets the mode of the launch gap. ``uuid`` names
    the GPU; without it CUDA_VISIBLE_DEVICES must hold the GPU's UUID. ``large_ring`` enlarges cold rings."""

    def __init__(
        self, device: torch.device, settings: TimingSettings, set_mode: SetMode, uuid: str | None = None
    ) -> None:
        self.device = device
        self.settings = settings
        self.gap = LaunchGap(set_mode)
        self.large_ring = False
        self._busy_until = -inf
        self._told: Canary | None = None
        named = uuid or os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self._monitor = Monitor(named) if device.type == "cuda" else None

    def warm_up(self) -> None:
        """Wake the GPU and capture the canary ahead of the first timing."""
        if self.device.type == "cuda":
            self._wake()
            self.gap.read()
            self._busy_until = perf_counter()

    def know(self, canary: Canary | None) -> None:
        """Set the canary's known times on this GPU, which identify the mode of the launch gap."""
        if self._monitor is not None and canary != self._told:
            self._told = canary
            self._wake()
            self.gap.know(canary, self._monitor)

    def calibrated(self) -> Canary:
        """Measure and return the canary's times on this GPU."""
        assert self._monitor is not None, "a GPU alone has a canary"
        self._wake()
        return self.gap.calibrated(self._monitor)

    def release(self) -> None:
        """Free all device memory that this process holds for timing. No graph may be in use."""
        self.gap.release()
        capture.release()

    def time(
        self, call: Call, inputs: Tensors, bytes_: int, in_place: bool = False, another: Another | None = None
    ) -> tuple[Samples, State]:
        """Time a call. Return the samples and the state of the device while they were taken.

        ``bytes_`` is the size of the inputs and outputs of a call. ``in_place`` says that the call overwrites
        its inputs. ``another`` makes further input sets; without it they are permutations of ``inputs``.

        If the GPU was throttled, the call is timed once more after a wait, and the state is marked invalid if
        the GPU was throttled again. The state is also marked invalid if the canary shows that the launch gap
        was not in its fast mode.
        """
        samples, state = self._once(call, inputs, bytes_, in_place, another)
        if state.throttle:
            samples, state = self._once(call, inputs, bytes_, in_place, another)
        if state.throttle:
            why = f"the GPU was held back while it was timed, twice: {state.throttle}"
            state = state.replace(valid=False, invalid_reason=why)
        canary, known = samples.canary, self.gap.known
        if canary is not None and known is not None and self.gap.is_late(canary, median(samples.samples_us)):
            state = state.distrusted(
                f"launches were late: the canary took {canary.us:.3f} us, "
                f"{known.fast_us:.3f} in the fast mode"
            )
        return samples, state

    def cache(self, samples: Samples) -> Literal["cold", "hot"]:
        """Return the state of the cache that the samples saw. It is ``cold`` only if the calls touched enough
        memory, unlike a small problem or a call that returns the same memory every time."""
        cold = samples.touched_bytes >= COLD_FACTOR * last_level_cache(self.device)
        return "cold" if cold and self.settings.cache == "cold" else "hot"

    def _once(
        self, call: Call, inputs: Tensors, bytes_: int, in_place: bool, another: Another | None
    ) -> tuple[Samples, State]:
        if self._monitor is None:
            return self._on_cpu(call, inputs, in_place, another), State(threads=torch.get_num_threads())
        before = self._rested(self._monitor)
        samples = self._on_gpu(call, inputs, bytes_, in_place, another)
        after = self._monitor.read()
        self._busy_until = perf_counter()
        reasons = {*(before.throttle or "").split(","), *(after.throttle or "").split(",")} - {""}
        return samples, after.replace(throttle=",".join(sorted(reasons)) or None)

    @staticmethod
    def _rested(monitor: Monitor) -> State:
        """Wait until the device is not throttled, at most ``REST_S``, and return its state."""
        begin = perf_counter()
        while (state := monitor.read()).throttle and perf_counter() - begin < REST_S:
            sleep(LOOK_S)
        return state

    def _on_cpu(self, call: Call, inputs: Tensors, in_place: bool, another: Another | None) -> Samples:
        rotation = Rotation(call, ring(inputs, self._sets_of(inputs), another), in_place)
        return CpuTimer().measure(rotation, self._stopping())

    def _on_gpu(
        self, call: Call, inputs: Tensors, bytes_: int, in_place: bool, another: Another | None
    ) -> Samples:
        settings, stop = self.settings, self._stopping()
        sets = self._sets(bytes_)
        flush = self._factor * last_level_cache(self.device) if settings.cache == "cold" else 0
        self._wake()
        if settings.timer in ("auto", "graph"):
            fits = sets <= MOST_SETS
            try:
                rotation = Rotation(call, ring(inputs, sets if fits else FLUSHED_SETS, another), in_place)
                return GraphTimer(self.gap, 0 if fits else flush).measure(rotation, stop)
            except NotCapturableError:
                torch.cuda.synchronize()
        if settings.timer in ("wall", "wall_no_sync"):
            rotation = Rotation(call, ring(inputs, self._sets_of(inputs), another), in_place)
            return WallTimer(synchronize=settings.timer == "wall").measure(rotation, stop)
        timer: Timer = DoBenchTimer() if settings.timer == "do_bench" else EventTimer(flush)
        return timer.measure(Rotation(call, (inputs,), in_place), stop)

    def _wake(self) -> None:
        """Raise the clocks of a GPU that has been idle, for example while a provider was compiled."""
        if perf_counter() - self._busy_until < IDLE_S:
            return
        block = torch.empty(WAKE_BYTES, dtype=torch.uint8, device=self.device)
        begin = perf_counter()
        while perf_counter() - begin < WAKE_S:
            for _ in range(10):
                block.add_(1)
            torch.cuda.synchronize()

    def _sets(self, bytes_: int) -> int:
        """Return the number of sets of ``bytes_`` each that a ring needs for the configured cache state."""
        if self.settings.cache == "hot":
            return 1
        return ceil(self._factor * last_level_cache(self.device) / max(bytes_, 1))

    @property
    def _factor(self) -> int:
        """The least memory of a cold ring, and of a flush, as a multiple of the last-level cache."""
        return LARGE_FACTOR if self.large_ring else COLD_FACTOR

    def _sets_of(self, inputs: Tensors) -> int:
        """Return the number of sets by the inputs alone, for calls whose outputs may share memory. It is
        limited, because a vector of one element would need millions of sets."""
        return min(self._sets(sum(x.nbytes for x in inputs)), MOST_SETS)

    def _stopping(self) -> Stopping:
        settings = self.settings
        if settings.stopping == "count":
            return Count(settings.min_samples)
        budget = Budget(settings.max_seconds)
        if settings.stopping == "budget":
            return budget
        return Either(Confidence(settings.target_rel_ci, settings.min_samples), budget)


def ring(inputs: Tensors, sets: int, another: Another | None) -> tuple[Tensors, ...]:
    """Return a ring of input sets: the inputs, and ``sets - 1`` further sets with the same strides in memory
    of their own, aligned as torch aligns tensors. Neighbouring sets differ, if inputs can differ.

    Without ``another`` a further set holds the values of the inputs in another order. With it further sets
    are made for ``MAKE_S`` seconds, so that there are at least ``FEWEST_MADE`` distinct sets; the remaining
    sets are copies of the distinct sets in turn.
    """
    blocks = [_block(x, sets - 1) for x in inputs]
    if another is None:
        for x, block in zip(inputs, blocks, strict=True):
            rolls(x, sets - 1, block)
    elif sets > 1:
        _made_anew(inputs, blocks, another)
    columns = [
        (x, *(row.as_strided(x.shape, x.stride(), row.storage_offset()) for row in block))
        for x, block in zip(inputs, blocks, strict=True)
    ]
    return tuple(zip(*columns, strict=True))


def _block(x: torch.Tensor, count: int) -> torch.Tensor:
    """Allocate ``count`` rows, each of the memory that a tensor spans."""
    span = span_of(x)
    apart = ceil(span * x.itemsize / ALIGNMENT) * ALIGNMENT // x.itemsize
    return torch.empty((count, apart), dtype=x.dtype, device=x.device)[:, :span]


def _made_anew(inputs: Tensors, blocks: list[torch.Tensor], another: Another) -> None:
    """Fill the sets after the first with new inputs and copies of these inputs."""
    rest = len(blocks[0])
    made, begin = 0, perf_counter()
    while made < rest and (made + 1 < FEWEST_MADE or perf_counter() - begin < MAKE_S):
        for x, block in zip(another(made + 1), blocks, strict=True):
            block[made].copy_(spanned(x))
        made += 1
        if blocks[0].is_cuda:
            torch.cuda.synchronize()
    kinds = made + 1
    for x, block in zip(inputs, blocks, strict=True):
        for kind in range(kinds):
            of = spanned(x) if kind == 0 else block[kind - 1]
            copies = block[kinds - 1 + kind :: kinds]
            copies.copy_(of.expand(copies.shape))
        if rest > made and rest % kinds == 0:
            # Otherwise the last set would equal the first set, which follows it.
            block[-1].copy_(block[0])


def span_of(x: torch.Tensor) -> int:
    """Return the number of elements from a tensor's first to its last in memory, including padding."""
    steps = zip(x.shape, x.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) if x.numel() else 0


def step_of(span: int, sets: int) -> int:
    """Return the number of elements by which each of ``sets`` sets is rolled against the previous set."""
    return max(1, span // sets)


def like_the_first(made: Tensors, first: Tensors) -> bool:
    """Whether two sets of inputs have the same dtypes, shapes and strides."""
    return [(x.dtype, x.shape, x.stride()) for x in made] == [(x.dtype, x.shape, x.stride()) for x in first]


def spanned(x: torch.Tensor) -> torch.Tensor:
    """Return a one-dimensional view of all the memory that a tensor spans."""
    return x.as_strided((span_of(x),), (1,))


def _as_integers(x: torch.Tensor) -> torch.Tensor:
    """Return a view of the tensor as integers, because some dtypes do not support ``roll`` and ``repeat``."""
    return x.view(BITS[x.itemsize]) if x.itemsize in BITS else x


def shifted(x: torch.Tensor, elements: int) -> torch.Tensor:
    """Return a copy of a tensor with its memory rolled back by ``elements``; values before the start wrap
    around to the end."""
    moved = _as_integers(spanned(x)).roll(-elements)
    return moved.view(x.dtype).as_strided(x.shape, x.stride())


def rolls(x: torch.Tensor, count: int, out: torch.Tensor, first: int = 1) -> None:
    """Write ``count`` copies of a tensor's memory into the rows of ``out``. Row i is ``shifted`` by ``first +
    i`` steps of ``step_of`` elements."""
    span = out.shape[1]
    if span < 2:
        out.copy_(spanned(x).expand(count, span))
        return
    flat, out = _as_integers(spanned(x)), _as_integers(out)
    step = step_of(span, first + count)
    if count <= FEW_COPIES:
        for row, place in zip(out, range(first * step, (first + count) * step, step), strict=True):
            start = place % span
            row[: span - start].copy_(flat[start:])
            row[span - start :].copy_(flat[:start])
        return
    # The rows are overlapping windows of a few concatenated copies, so one launch writes them all.
    repeats = 1 + ceil((first + count - 1) * step / span)
    out.copy_(flat.repeat(repeats).as_strided((count, span), (step, 1), first * step))


@cache
def last_level_cache(device: torch.device) -> int:
    """Return the bytes of the device's last-level cache; 32 MiB for a CPU whose L3 size is unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (index / "level").read_text().strip() == "3":
            return int((index / "size").read_text().strip().removesuffix("K")) * 1024
    return 32 << 20
