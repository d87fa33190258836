"""Tables of the documentation's figures that say why: what a call launches, what ncu counts, and what each
configuration takes. ``python -m pipeline.docs`` writes them into pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.points import notation
from pipeline.points.point import Point
from pipeline.reporting.frames import comparable
from pipeline.reporting.numbers import number
from pipeline.store.evidence import CounterRow, ProfileRow
from pipeline.store.record import Measurement


@dataclass(frozen=True)
class FigureSelection:
    """Which points a table shows: a kernel's problems, by extent and words in their order, and providers,
    None for all."""

    kernel: str
    problems: Collection[tuple[str, str]]
    providers: Collection[str] | None
    machine: Callable[[str], str]
    """A machine's name as people read it, by its slug."""

    def has(self, point: Point | None) -> bool:
        """Whether a point is one of them."""
        return (
            point is not None
            and point.kernel == self.kernel
            and place(point) in self.problems
            and (self.providers is None or point.provider in self.providers)
        )


def place(point: Point) -> tuple[str, str]:
    """A point's problem, by its extent and its words."""
    return notation.extent(point), notation.words(point)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """A table whose columns but the first ``words`` are numbers."""
    marks = "".join("|---" if index < words else "|---:" for index in range(len(header)))
    lines = [f"| {' | '.join(row)} |" for row in [header, *rows]]
    return "\n".join([lines[0], f"{marks}|", *lines[1:]])


def configurations(wanted: FigureSelection, measurements: Iterable[Measurement], x: str) -> Iterator[str]:
    """What each configuration takes at each problem, by the sweeps, and the commits that measured it; for
    each machine a caption and its table."""
    by_gpu: dict[str, list[Measurement]] = {}
    for row in comparable(measurements):
        if wanted.has(row.point) and row.outcome.timing is not None:
            by_gpu.setdefault(row.origin.gpu, []).append(row)
    for gpu, rows in sorted(by_gpu.items()):
        rows.sort(key=lambda row: _order(row.point, wanted.providers))
        names = list(dict.fromkeys(notation.label(row.point) for row in rows))
        times = {
            (notation.label(row.point), *place(row.point)): row.outcome.timing.median_us
            for row in rows
            if row.outcome.timing is not None
        }
        problems = [one for one in wanted.problems if any((name, *one) in times for name in names)]
        cells = [[f"`{name}`", *(number(times.get((name, *one)), 4) for one in problems)] for name in names]
        commits = sorted({f"`{(row.origin.commit or '')[:7]}`" for row in rows})
        header = [f"us at {x} =", *(" ".join(filter(None, reversed(one))) for one in problems)]
        plural = "s" * (len(commits) > 1)
        caption = f"us, by sweeps, not side by side, commit{plural} {', '.join(commits)}"
        yield f"*{wanted.machine(gpu)}, {caption}.*\n\n{markdown(header, cells, 1)}"


def _order(point: Point, providers: Collection[str] | None) -> tuple[int, str, list[tuple[str, int, str]]]:
    """Configurations stand in the order that their providers were asked for, then by their parameters."""
    asked = list(providers or ())
    values = [
        (name, value if isinstance(value, int) else 0, str(value)) for name, value in point.parameters.items()
    ]
    return asked.index(point.provider) if asked else 0, point.provider, values


def launches(
    wanted: FigureSelection, profiles: Mapping[tuple[str, str], Sequence[ProfileRow]]
) -> Iterator[str]:
    """What a call launches, and what it takes on the device and on the host, by torch.profiler."""
    for gpu, rows in _machines(wanted.kernel, profiles):
        cells = [
            [
                f"`{notation.label(row.point)}`",
                " ".join(filter(None, reversed(place(row.point)))),
                f"{row.launches:g}" if row.launches is not None else "",
                number(row.device_us),
                number(row.host_us),
            ]
            for row in rows
            if row.point is not None and wanted.has(row.point)
        ]
        if cells:
            header = ["configuration", "problem", "launches", "us on the device", "us on the host"]
            yield f"*{wanted.machine(gpu)}, under torch.profiler.*\n\n{markdown(header, cells, 2)}"


def counted(
    wanted: FigureSelection, counters: Mapping[tuple[str, str], Sequence[CounterRow]]
) -> Iterator[str]:
    """What ncu counted, the state that warps wait in most, and the hint that promises the whole kernel
    most."""
    for gpu, rows in _machines(wanted.kernel, counters):
        shown = [row for row in rows if row.status == "ok" and wanted.has(row.point)]
        if not shown:
            continue
        header = ["configuration", "problem", "waits most for", "largest hint", "blocks", "waves"]
        header += ["occupancy %", "of possible %", "memory %", "compute %", "DRAM GB/s", "sectors a load"]
        tools = ", ".join(sorted({str(row.tool) for row in shown}))
        table = markdown(header, [_counted(row) for row in shown], 4)
        yield f"*{wanted.machine(gpu)}, by {tools}.*\n\n{table}"


def traffic(
    wanted: FigureSelection, counters: Mapping[tuple[str, str], Sequence[CounterRow]]
) -> Iterator[str]:
    """The bytes of device memory that a call reads and writes, over all that it launches, as ncu counted
    them."""
    for gpu, rows in _machines(wanted.kernel, counters):
        calls: dict[Point, list[CounterRow]] = {}
        for row in rows:
            if row.point is not None and row.status == "ok" and wanted.has(row.point):
                calls.setdefault(row.point, []).append(row)
        cells = [
            [
                f"`{notation.label(point)}`",
                " ".join(filter(None, reversed(place(point)))),
                str(len(launched)),
                _megabytes(row.dram_read_bytes for row in launched),
                _megabytes(row.dram_write_bytes for row in launched),
            ]
            for point, launched in calls.items()
        ]
        if cells:
            tools = ", ".join(sorted({str(row.tool) for launched in calls.values() for row in launched}))
            header = ["configuration", "problem", "launches", "MB read", "MB written"]
            yield f"*{wanted.machine(gpu)}, device memory, by {tools}.*\n\n{markdown(header, cells, 2)}"


def _megabytes(some: Iterable[float | None]) -> str:
    """Their sum; nothing where one was not counted."""
    known = list(some)
    return "" if None in known else f"{sum(one or 0.0 for one in known) / 1e6:,.0f}"


def _counted(row: CounterRow) -> list[str]:
    assert row.point is not None
    hint = max(
        (rule for rule in row.rules if rule.gain_pct is not None),
        key=lambda rule: rule.gain_pct or 0.0,
        default=None,
    )
    return [
        f"`{notation.label(row.point)}`",
        " ".join(filter(None, reversed(place(row.point)))),
        max(row.stalls, key=row.stalls.__getitem__, default="").replace("_", " "),
        "" if hint is None else f"{hint.name}, {number(hint.gain_pct)} %",
        "" if row.grid_size is None else f"{row.grid_size:.0f}",
        number(row.waves_per_sm),
        number(row.achieved_occupancy_pct),
        number(row.theoretical_occupancy_pct),
        number(row.memory_throughput_pct),
        number(row.compute_throughput_pct),
        number(row.dram_gbps, 4),
        number(row.sectors_per_load),
    ]


R = TypeVar("R")


def _machines(
    kernel: str, evidence: Mapping[tuple[str, str], Sequence[R]]
) -> Iterator[tuple[str, Sequence[R]]]:
    """The machines whose evidence of a kernel is there; a CPU is no model of one."""
    for (name, gpu), rows in sorted(evidence.items(), key=lambda item: item[0]):
        if name == kernel and not gpu.startswith("cpu-"):
            yield gpu, rows
