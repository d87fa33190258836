"""Stage ``counters``: read performance counters by Nsight Compute, in launches that are not timed.

    python -m pipeline.counters kernel=softmax
    python -m pipeline.counters kernel=gelu sets=basic
    python -m pipeline.counters kernel=softmax size=4096 sets=[SpeedOfLight,dram__bytes_read.sum]
    python -m pipeline.counters program="python train.py" sets=basic launches=20
    python -m pipeline.counters report=train.ncu-rep

Takes the best own configuration of the ledger, the same provider's default configuration and the baseline, at
a small, a middle and a large problem. One ncu session counts all kernels. A preset that takes only the
largest problem counts the best and the baseline. It leaves out a baseline that launches many kernels, because
each costs ncu a second. Points that were counted are not counted again. If counters can't be read, the rows
have the reason and the remedy. With program= or report= it prints a line for each function of a program, or
of a report from elsewhere, and writes no rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kernel_pipeline import json_lines
from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.compile_pool import Ahead, Compilers
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.credentials import masked

from .command.options import CountersConfig
from .command.run import console, for_each, run_each, say, warn
from .inspection import ncu
from .inspection.ncu import Unavailable
from .inspection.ncu_pages import bound, by_function, of_points
from .inspection.ncu_session import SessionPoints, SessionResult, of_program, pages_of, session
from .inspection.target import KernelTarget
from .points import catalog
from .points.choice import Chosen, best_default_baseline, each_provider
from .points.notation import title as title_of
from .reporting.numbers import number
from .reporting.tables import TextTable
from .store import results
from .store.evidence import CounterRow, ProfileRow, joined, read_lines

COLUMNS = {
    "us": "duration_us",
    "memory %": "memory_throughput_pct",
    "compute %": "compute_throughput_pct",
    "DRAM GB/s": "dram_gbps",
    "L2 hit %": "l2_hit_pct",
    "occup. %": "achieved_occupancy_pct",
    "regs": "registers",
    "waves": "waves_per_sm",
}
"""The columns of the printed table, and the fields that they show."""

MOST_LAUNCHES = 8
"""A preset of the largest problem counts a baseline only if its call launches at most this many kernels."""

MACHINES = (ncu.NO_GPU, ncu.NO_NCU, ncu.NO_PERMISSION, ncu.BUSY)
"""Reasons why no kernel can be counted on this machine."""


def run(configs: Sequence[CountersConfig]) -> None:
    """Count the missing points of all kernels in one session, write rows and reports, and print each point's
    limit; or count a program or read a report."""
    config = configs[0]
    if [config.kernel, config.program, config.report].count(None) != 2:
        names = ", ".join(catalog.names())
        raise UserError(
            f'write one of kernel=NAME, program="COMMAND" and report=FILE; NAME is one of {names}.'
        )
    if config.kernel is None:
        of_others(config)
        return
    chosen = device.resolve(configs[0].device)  # once, before CUDA_VISIBLE_DEVICES is set
    begun = {config.kernel: begin(config, chosen) for config in configs}
    count([one for one in begun.values() if isinstance(one, Counters) and one.missing])

    def end(config: CountersConfig) -> None:
        stage = begun[config.kernel]
        if isinstance(stage, UserError):
            raise stage
        stage.end()

    for_each(configs, end, results.folder_for(configs[0].output, chosen.kind) / "counters")


def begin(config: CountersConfig, chosen: device.Device) -> Counters | UserError:
    """Return a kernel's part of the stage, or the user's mistake that prevents it."""
    try:
        return Counters(
            config, KernelTarget(config.entry, chosen, config.timing.settings, config.seed, config.output)
        )
    except UserError as error:
        return error


def count(stages: Sequence[Counters]) -> None:
    """Count the missing points of several kernels in one session. If a kernel breaks the session, by a crash
    or a time-out, it and the kernels after it are counted in sessions of their own."""
    if not stages:
        return
    config, chosen = stages[0].config, stages[0].target.device
    wanted = [stage.session_points for stage in stages]
    points = sum(len(one.points) for one in wanted)
    alone: Sequence[Counters] = []
    try:
        with ExitStack() as stack:
            stack.enter_context(DeviceLock(chosen, config.wait_s, warn))
            stack.enter_context(console.status(f"Counting {points} points …"))
            stack.enter_context(compiling(stages))
            timeout_s = len(stages) * config.timeout_s
            result = stack.enter_context(session(wanted, config.seed, config.metrics, timeout_s, chosen))
            for stage, one in zip(stages, wanted, strict=True):
                if result.knows(one) or len(stages) == 1:
                    stage.take(result)
            alone = [stage for stage in stages if stage.made is None]
    except Unavailable as unavailable:
        if len(stages) > 1 and unavailable not in MACHINES:
            alone = stages
        else:
            for stage in stages:
                stage.give_up(unavailable)
    for stage in alone:
        count([stage])


@contextmanager
def compiling(stages: Sequence[Counters]) -> Iterator[None]:
    """Build the points' libraries in parallel before ncu starts. Triton compiles into its cache meanwhile,
    also while ncu's process imports torch."""
    device_kind = stages[0].target.device.kind
    capability = stages[0].target.environment.compute_capability
    if device_kind != "cuda" or capability is None:
        yield
        return
    ncu.find_ncu()  # raises before anything is built if ncu is missing
    with Compilers(capability) as compilers:
        libraries = []
        for stage in stages:
            loaded = stage.target.entry.loaded
            points = [one.point for one in stage.missing.values()]
            ahead = Ahead(loaded, compilers)
            ahead.submit(points)
            libraries += [
                ahead.futures[one] for one in points if loaded.kernel.provider(one.provider).extension
            ]
        wait(libraries)  # a failed build is reported by the point's own call
        yield


class Counters:
    """One run over points of one kernel on one device. ``missing`` are the points to count, by key; ``made``
    are their rows, None before they are counted."""

    def __init__(self, config: CountersConfig, target: KernelTarget) -> None:
        self.config = config
        self.target = target
        name = target.entry.name
        self.path = results.counters_path(target.output, name, target.slug)
        self.folder = config.artifacts / "counters" / name / target.slug
        self.instrument = digest(config.metrics)
        results.asked_for(results.counters_path(config.output, name, target.slug))
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.wanted = {self.target.identity.key(one.point): one for one in self.choose()}
        self.known = self.read_known()
        if config.preset.closer == "largest" and config.provider is None:
            for key in self.of_many_launches() - self.known.keys():
                del self.wanted[key]
        self.missing = {key: one for key, one in self.wanted.items() if key not in self.known}
        self.made: dict[str, list[CounterRow]] | None = None

    @property
    def session_points(self) -> SessionPoints:
        """The missing points, as a session takes them."""
        points = {key: one.point for key, one in self.missing.items()}
        return SessionPoints(self.target.entry.loaded.where, points)

    def choose(self) -> list[Chosen]:
        """Return the points that the options choose. Raises UserError if there are none."""
        config, kernel = self.config, self.target.kernel
        points, left_out = self.target.points(
            config.preset.name, config.pin, config.provider, "cuda", config.preset.few
        )
        timed = self.target.timed(warn)
        if config.provider is None:
            found = best_default_baseline(kernel, points, timed)
            if config.preset.closer == "largest" and any(one.role == "best" for one in found):
                # A preset of the largest problem takes the fastest own configuration and the baseline.
                found = [one for one in found if one.role != "default"]
        else:
            found = each_provider(kernel, points, timed)
        if not found and (config.provider or config.pin):
            raise UserError(
                f"these options leave no point of {self.target.entry.name} to count. "
                f"{' '.join(left_out)} "
                f"provider= takes {', '.join(p.name for p in kernel.providers if 'cuda' in p.devices)}."
            )
        return found

    def of_many_launches(self) -> set[str]:
        """Return the keys of baselines whose profiles show more launches than ``MOST_LAUNCHES``."""
        path = results.profile_path(self.target.output, self.target.entry.name, self.target.slug)
        many = {
            row.key for row in read_lines(path, ProfileRow, warn) if (row.launches or 0.0) > MOST_LAUNCHES
        }
        return {key for key, one in self.wanted.items() if key in many and one.role == "baseline"}

    def read_known(self) -> dict[str, list[CounterRow]]:
        """Return the rows of points that need not be counted again, by key. All kernels of such a point were
        counted with the sections of the options; a preset with few sections accepts any."""
        found: dict[str, list[CounterRow]] = {}
        for row in read_lines(self.path, CounterRow, warn):
            found.setdefault(str(row.key), []).append(row)
        takes_any = self.config.sets is None and self.config.metrics != ("full",)
        return {
            key: rows
            for key, rows in found.items()
            if all(row.status == "ok" and (takes_any or row.instrument == self.instrument) for row in rows)
        }

    def take(self, result: SessionResult) -> None:
        """Make rows of a session's result, and keep the report and this kernel's part of its pages."""
        place = self.folder / f"{digest(sorted(self.missing))[:8]}.ncu-rep"
        for page, text in result.pages.items():
            kept = of_points(text, self.missing)
            write_atomically(self.folder / f"{place.stem}.{page}.csv", masked(kept).encode())
        report = None
        if result.report is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(result.report, place)
            report = str(place.relative_to(self.config.artifacts))
        self.made = {}
        for key, one in self.missing.items():
            common = {**self.common(key, one), "tool": result.tool.name, "report": report}
            self.made[key] = rows_of(result.found.get(key, ()), result.failures.get(key), common)

    def give_up(self, unavailable: Unavailable) -> None:
        """Make rows that say why nothing can be counted here."""
        self.made = {
            key: [
                CounterRow(
                    **self.common(key, one),
                    status="unavailable",
                    reason=unavailable.reason,
                    fix=unavailable.fix,
                    sentence=f"unavailable: {unavailable}",
                )
            ]
            for key, one in self.missing.items()
        }

    def common(self, key: str, one: Chosen) -> dict[str, Any]:
        """Return the fields that all rows of a point share."""
        return {
            **joined(one.point, key),
            "role": one.role,
            "environment": self.target.environment.digest,
            "instrument": self.instrument,
        }

    def end(self) -> None:
        """Write the rows and print them."""
        found = {**self.known, **(self.made or {})}
        rows = [row.replace(role=one.role) for key, one in self.wanted.items() for row in found[key]]
        json_lines.write(self.path, rows)
        self.forget(rows)
        if not self.missing:
            reason = (
                f"{self.path} holds every point"
                if rows
                else f"no provider of {self.target.title} can be counted"
            )
            say(f"Nothing to count: {reason}.")
            return
        show(rows, self.target.title)
        reports = dict.fromkeys(row.report for row in rows if row.report)
        where = "".join(f", report: {self.config.artifacts / name}" for name in reports)
        say(f"{len(rows)} rows: {self.path}{where}")

    def forget(self, rows: Sequence[CounterRow]) -> None:
        """Delete this machine's reports that no row names, with their pages."""
        named = tuple({f"{Path(row.report).stem}." for row in rows if row.report})
        for path in self.folder.glob("*"):
            if not path.name.startswith(named):
                path.unlink()


def of_others(config: CountersConfig) -> None:
    """Print a line for each function of a program, or of a report from elsewhere, and what limits it."""
    try:
        report = config.report or counted(config)
        raw, details = pages_of(report)
    except Unavailable as unavailable:
        raise UserError(f"counters are unavailable: {unavailable}.") from unavailable
    except (OSError, ncu.UnreadableError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"report={config.report} can't be read: {reason}.") from error
    functions = by_function(raw, details)
    if not functions:
        raise UserError(f"{report} has no kernel.")
    lines, sentences = [], []
    for launches in functions:
        longest = launches[0]
        total = sum(launch["duration_us"] or 0.0 for launch in launches)
        cells = [number(longest[field]) for field in COLUMNS.values()]
        name = str(longest["function"])
        lines.append(
            [f"{name[:19]}..." if len(name) > 22 else name, str(len(launches)), number(total), *cells]
        )
        sentences.append(f"{name}: {bound(longest)[1]}")
    numbers = ("count", "total us", *COLUMNS)
    TextTable("the longest launch of each function", ("function", *numbers), lines, numbers).print(console)
    for sentence in sentences:
        say(sentence)
    say(f"{len(functions)} function{'s' * (len(functions) != 1)}: {report}")


def counted(config: CountersConfig) -> Path:
    """Count the first launches of a program, and return the report. Raises UserError if there are none, and
    Unavailable."""
    chosen = device.resolve(config.device)
    if chosen.kind != "cuda":
        raise ncu.NO_GPU
    report = config.artifacts / "counters" / "programs" / f"{digest(config.program)[:8]}.ncu-rep"
    with DeviceLock(chosen, config.wait_s, warn), console.status("Counting the program …"):
        of_program(str(config.program), report, config.metrics, config.launches, config.timeout_s, chosen)
    if not report.is_file():
        raise UserError(f"'{config.program}' launched no kernel.")
    return report


def rows_of(
    found: Sequence[Mapping[str, Any]], failure: str | None, common: Mapping[str, Any]
) -> list[CounterRow]:
    """Return a row for each kernel that a point launched. For a point without a kernel, return a row with the
    reason."""
    rows = []
    for numbers in found:
        limit, sentence = bound(numbers)
        rows.append(CounterRow(status="ok", bound=limit, sentence=sentence, **common, **numbers))
    if not rows:
        reason = failure or "ncu saw no kernel of it"
        rows.append(CounterRow(status="error", reason=reason, sentence=f"not counted: {reason}", **common))
    return rows


def show(rows: Sequence[CounterRow], title: str) -> None:
    """Print a line for each kernel, and below them the limits. If nothing was counted, print the reason
    once."""
    missing = {row.sentence for row in rows if row.status == "unavailable"}
    if missing:
        say(f"{title}: counters are {' '.join(sorted(missing))}.")
    there = [row for row in rows if row.status != "unavailable"]
    if not there:
        return
    lines, sentences = [], []
    for row in there:
        assert row.point is not None, "every row of counters has a point"
        point = title_of(row.point)
        cells = [number(getattr(row, field)) for field in COLUMNS.values()]
        lines.append([f"{point} ({row.role})", *cells])
        sentences.append(f"{point}, {row.function or 'no kernel'}: {row.sentence}")
    TextTable(title, ("point", *COLUMNS), lines, tuple(COLUMNS)).print(console)
    for sentence in sentences:
        say(sentence)


if __name__ == "__main__":
    run_each("counters", CountersConfig, run)
