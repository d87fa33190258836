"""Check the accuracy of rows by fresh workers and by CUPTI's durations.

    python -m pipeline.accuracy
    python -m pipeline.accuracy kernel=[square,softmax] points=12
    python -m pipeline.accuracy output=results/accuracy

Takes points between 1 us and 10 ms from this machine's rows. Each of ``workers`` fresh workers measures all
of them. Two further workers do so while providers that switch the mode of the launch gap run before each
point. A last worker reads CUPTI's durations of the graphs that it has timed. Each reading is written at once,
so the same command continues after an interruption; another ``output`` measures anew. Prints a line for each
point, and exits with 1 if fewer than nine tenths of the points pass all three checks:

    spread      nine of ten workers lie within the larger of 1 % and 0.02 us of their median
    switched    the median moves by no more when providers switch the mode
    CUPTI       the duration equals the time within the larger of 1 % and 0.03 us, or CUPTI's records make the
                kernel itself slower by that much
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from statistics import median
from typing import Literal

from kernel_pipeline import json_lines
from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.compile_pool import built
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.files import append
from kernel_pipeline.machine import device
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.fields import Text
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings

from . import as_typed
from .command.options import AccuracyConfig
from .command.run import console, run_stage, say, warn
from .execution.session import Session
from .keys.identity import Identity
from .points import catalog, notation, plan
from .points.plan import Target
from .reporting.numbers import number
from .reporting.tables import TextTable
from .reporting.terminal import Progress
from .store import results
from .verdicts.sampling import SampledRow, by_provider, candidates, sample

NEAR, NEAR_US = 0.01, 0.02
"""Times are equal within the larger of this share and this many microseconds."""

CUPTI_NEAR_US = 0.03
"""The same for CUPTI's durations, in microseconds."""

SHARE = 0.9
"""The share of workers that have to agree, and the share of points that have to pass."""

SWITCHED_WORKERS = 2

Kind = Literal["fresh", "switched", "stamped"]
"""The kind of a reading: of a fresh worker, of a worker with mode switchers before each point, or of
CUPTI."""


class AccuracyReading(Record):
    """One worker's reading of a point: its time in microseconds, or CUPTI's duration with the time of a call
    in a replay without and with CUPTI's records. ``key`` is the key of a measurement of the point; readings
    with an old key do not count. ``worker`` numbers the workers of a kind."""

    key: Text
    point: Point
    kind: Kind
    worker: int
    time_us: float | None = None
    gross_us: float | None = None
    recorded_us: float | None = None
    duration_us: float | None = None


class AccuracyRow(Record):
    """The readings of one point, in microseconds: the medians of fresh workers and of workers with mode
    switchers, the time of a call in a replay without and with CUPTI's records, and CUPTI's duration. The last
    three are None if missing."""

    point: Point
    times_us: tuple[float, ...]
    switched_us: tuple[float, ...] = ()
    gross_us: float | None = None
    recorded_us: float | None = None
    duration_us: float | None = None

    @property
    def us(self) -> float:
        """The median of the fresh workers."""
        return median(self.times_us)

    @property
    def spread_us(self) -> float:
        """The largest distance from the median among the nearest nine tenths of fresh workers."""
        distances = sorted(abs(time - self.us) for time in self.times_us)
        return distances[ceil(SHARE * len(distances)) - 1]

    @property
    def moved_us(self) -> float | None:
        """The change of the median with mode switchers; None without such readings."""
        return median(self.switched_us) - self.us if self.switched_us else None

    @property
    def off_us(self) -> float | None:
        """The time of a call in a replay minus CUPTI's duration; None if either is missing."""
        return None if self.duration_us is None or self.gross_us is None else self.gross_us - self.duration_us

    @property
    def is_steady(self) -> bool:
        """Whether nine of ten fresh workers agree."""
        return self.spread_us <= self._near(NEAR_US)

    @property
    def is_unmoved(self) -> bool:
        """Whether the median stays the same with mode switchers."""
        return self.moved_us is None or abs(self.moved_us) <= self._near(NEAR_US)

    @property
    def is_slowed(self) -> bool:
        """Whether CUPTI's records make the kernel slower."""
        if self.gross_us is None or self.recorded_us is None:
            return False
        return self.recorded_us - self.gross_us > self._near(CUPTI_NEAR_US)

    @property
    def is_as_stamped(self) -> bool:
        """Whether CUPTI's duration agrees, or can't be judged."""
        return self.off_us is None or abs(self.off_us) <= self._near(CUPTI_NEAR_US) or self.is_slowed

    @property
    def holds(self) -> bool:
        """Whether the point passes all three checks."""
        return self.is_steady and self.is_unmoved and self.is_as_stamped

    def _near(self, least_us: float) -> float:
        return max(NEAR * self.us, least_us)


def run(config: AccuracyConfig) -> None:
    """Choose the points, measure them, and print how accurate the times are."""
    chosen = device.resolve(config.device)
    entries = [catalog.find(name) for name in config.kernel or catalog.names()]
    folder = results.folder_for(config.input, chosen.kind)
    found = list(candidates(entries, folder, chosen, warn))
    if not found:
        names = ",".join(entry.name for entry in entries)
        raise UserError(
            f"{folder} has no times of {chosen.slug} between 1 us and 10 ms: "
            f"run {as_typed('sweep', 'kernel=' + names, f'output={config.input}')} first."
        )
    drawn = sample(found, config.points, config.sample_seed)
    switchers = _switchers(config.switchers, chosen)
    path = results.folder_for(config.output.parent, chosen.kind) / config.output.name / f"{chosen.slug}.jsonl"
    with DeviceLock(chosen, config.wait_s, warn):
        rows = measured(drawn, switchers, chosen, config, path)
    table(rows, chosen).print(console)
    for line in summary(rows):
        say(line)
    say(f"Readings: {path}")
    if sum(row.holds for row in rows) < SHARE * len(drawn):
        warn(f"Fewer than nine tenths of the {len(drawn)} points pass all checks.")
        sys.exit(1)


def _switchers(where: str | None, chosen: Device) -> list[tuple[str, Point]]:
    """Return the points of the kernel whose providers switch the mode, each with the kernel's address."""
    if where is None or chosen.kind == "cpu":
        return []
    entry = catalog.find(where)
    target = Target(chosen.kind, device.capabilities(chosen))
    return [(entry.loaded.where, point) for point in plan.plan(entry, "smoke", target).points]


def measured(
    drawn: Sequence[SampledRow],
    switchers: Sequence[tuple[str, Point]],
    chosen: Device,
    config: AccuracyConfig,
    path: Path,
) -> list[AccuracyRow]:
    """Take the readings that ``path`` lacks and append them. Returns the rows of points that at least two
    fresh workers have measured."""
    broken = built((one.entry.loaded, one.row.point.provider) for one in drawn)
    sound = [one for one in drawn if (one.entry.name, one.row.point.provider) not in broken]
    sound.sort(key=by_provider)
    output = results.folder_for(config.output.parent, chosen.kind)
    environment = fingerprint(chosen)
    keys = {
        one.row.point: Identity(one.entry.loaded, environment, one.timing, one.seed).parts(one.row.point).key
        for one in sound
    }
    readings = {
        (reading.key, reading.kind, reading.worker): reading
        for reading in read_readings(path)
        if reading.key in keys.values()
    }
    passes: list[tuple[Kind, int]] = [
        *(("fresh", worker) for worker in range(config.workers)),
        *(("switched", worker) for worker in range(SWITCHED_WORKERS if switchers else 0)),
        ("stamped", 0),
    ]
    by_settings: dict[tuple[TimingSettings, int], list[SampledRow]] = defaultdict(list)
    for one in sound:
        by_settings[one.timing, one.seed].append(one)
    missing = [
        (settings, kind, worker, todo)
        for settings, some in by_settings.items()
        for kind, worker in passes
        if (todo := [one for one in some if (keys[one.row.point], kind, worker) not in readings])
    ]
    total = sum(len(todo) for *_, todo in missing)
    if readings and total:
        say(f"{len(readings)} readings are in {path}; {total} are missing.")
    with Progress(console, f"accuracy on {chosen.slug}", total) as progress:
        for (timing, seed), kind, number_of, todo in missing:
            session = Session(chosen, timing, seed, config.point_timeout_s, output)
            canary = session.canary
            with session.supervisor(heeds_load=True) as worker:
                worker.canary = canary
                for place, one in enumerate(todo):
                    if kind == "switched":
                        worker.measure(*switchers[place % len(switchers)])
                    reading = _read(worker, one, keys[one.row.point], kind, number_of)
                    if reading is not None:
                        append(path, reading.line())
                        readings[reading.key, kind, number_of] = reading
                    progress.advance(str(one.row.point))
    return list(
        filter(None, (_row(keys[one.row.point], one.row.point, list(readings.values())) for one in sound))
    )


def read_readings(path: Path) -> list[AccuracyReading]:
    """Return the readings of a file, in their order. Skips lines that are not readings: a killed process may
    leave one."""
    return json_lines.read(path, AccuracyReading.from_json, lambda number, line, error: None)


def _read(
    worker: Supervisor, one: SampledRow, key: str, kind: Kind, number_of: int
) -> AccuracyReading | None:
    """Take one reading of a point. Returns None, with a warning, if its time is missing or doubtful."""
    where, point = one.entry.loaded.where, one.row.point
    if kind == "stamped":
        stamps = worker.readings(where, point, ("auto",), 1, is_stamped=True).stamped
        values = {} if stamps is None else stamps.to_dict()
        return AccuracyReading(key=key, point=point, kind=kind, worker=number_of, **values)
    outcome = worker.measure(where, point)
    if outcome.timing is None:
        warn(f"{point}: {outcome.status}: {outcome.error}")
    elif outcome.state is not None and not outcome.state.valid:
        warn(f"{point}: {outcome.state.invalid_reason}")
    else:
        us = outcome.timing.median_us
        return AccuracyReading(key=key, point=point, kind=kind, worker=number_of, time_us=us)
    return None


def _row(key: str, point: Point, readings: Sequence[AccuracyReading]) -> AccuracyRow | None:
    own = [one for one in readings if one.key == key]
    times = [one.time_us for one in own if one.kind == "fresh" and one.time_us is not None]
    if len(times) < 2:
        return None
    stamps = next((one for one in own if one.kind == "stamped"), None)
    return AccuracyRow(
        point=point,
        times_us=tuple(times),
        switched_us=tuple(one.time_us for one in own if one.kind == "switched" and one.time_us is not None),
        gross_us=None if stamps is None else stamps.gross_us,
        recorded_us=None if stamps is None else stamps.recorded_us,
        duration_us=None if stamps is None else stamps.duration_us,
    )


HEADINGS = ("us", "workers", "spread us", "switched us", "CUPTI us", "with records us", "")


def cells(row: AccuracyRow) -> list[str]:
    """Return the cells of a point in a table, without its name."""
    missed = [
        name
        for name, is_so in (
            ("spread", row.is_steady),
            ("switched", row.is_unmoved),
            ("CUPTI", row.is_as_stamped),
        )
        if not is_so
    ]
    return [
        number(row.us),
        str(len(row.times_us)),
        f"{row.spread_us:.3f}",
        "–" if row.moved_us is None else f"{row.moved_us:+.3f}",
        "–" if row.off_us is None else f"{row.duration_us:.4g} ({-row.off_us:+.3f})",
        number(row.recorded_us) if row.is_slowed else "",
        ", ".join(missed),
    ]


def table(rows: Sequence[AccuracyRow], chosen: Device) -> TextTable:
    """Return a table with a line for each point, from short to long times."""
    ordered = sorted(rows, key=lambda row: row.us)
    lines = [[f"{row.point.kernel} {notation.title(row.point)}", *cells(row)] for row in ordered]
    return TextTable(f"accuracy on {chosen.slug}", ("point", *HEADINGS), lines, numbers=HEADINGS[:-1])


def summary(rows: Sequence[AccuracyRow]) -> Iterator[str]:
    """Yield a sentence for each check, with the number of points that pass it."""
    total = len(rows)
    yield (
        f"spread: at {sum(row.is_steady for row in rows)} of {total} points nine of ten workers' times lie "
        f"within {NEAR:.0%} or {NEAR_US} us of their median."
    )
    if switched := [row for row in rows if row.switched_us]:
        unmoved = sum(row.is_unmoved for row in switched)
        yield (
            f"switched: at {unmoved} of {len(switched)} points mode switchers move the median by no more "
            "than that."
        )
    if read := [row for row in rows if row.off_us is not None]:
        near = sum(row.is_as_stamped and not row.is_slowed for row in read)
        slowed = sum(row.is_slowed for row in read)
        yield (
            f"CUPTI: at {near} of {len(read)} points CUPTI's duration is within {NEAR:.0%} or "
            f"{CUPTI_NEAR_US} us of the time; at {slowed} recording makes the kernel slower."
        )


if __name__ == "__main__":
    run_stage("accuracy", AccuracyConfig, run)
