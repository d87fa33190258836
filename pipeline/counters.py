"""Stage ``counters``: what Nsight Compute counts, in a launch of its own that nothing times.

    python -m pipeline.counters kernel=softmax
    python -m pipeline.counters kernel=gelu sets=basic
    python -m pipeline.counters kernel=softmax size=4096 sets=[SpeedOfLight,dram__bytes_read.sum]

Looks at the best own configuration by the ledger, the same provider's default one and the baseline, at a
small, a middle and a large problem, all in one session of ncu. What was counted is not counted again. Where
counters can't be read, the rows say why and what to do.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from pipeline import ROOT, UserError
from pipeline.command.options import CountersConfig
from pipeline.command.run import console, for_each, run_each
from pipeline.inspection import ncu
from pipeline.inspection.ncu import Ncu, Unavailable
from pipeline.inspection.ncu_pages import bound, by_point
from pipeline.inspection.subject import Subject, instrument
from pipeline.machine import device
from pipeline.machine.lock import DeviceLock
from pipeline.points.choice import Chosen, best_default_baseline, each_provider
from pipeline.points.frozen import digest
from pipeline.points.notation import extent, label, words
from pipeline.reporting.numbers import number, print_wide
from pipeline.store import results
from pipeline.store.evidence import CounterRow, joined, read_lines, write_lines
from pipeline.store.files import write_atomically

INSTRUMENT = {
    "inspection/counted.py": "main",
    "inspection/ncu.py": "Ncu.*",
    "inspection/ncu_pages.py": "by_point bound",
}
"""What a row comes from, beside the sets that are counted."""

warn = partial(console.print, style="yellow", highlight=False, soft_wrap=True)


def run(configs: Sequence[CountersConfig]) -> None:
    """``of_kernel`` for each kernel."""
    chosen = device.resolve(configs[0].device)  # once: CUDA_VISIBLE_DEVICES is set on the way
    where = results.folder_for(configs[0].output, chosen.kind) / "counters"
    for_each(configs, partial(of_kernel, chosen=chosen), where)


def of_kernel(config: CountersConfig, chosen: device.Device) -> None:
    """Count what is not there yet, write rows and report, and print what limits each point."""
    stage = Counters(config, Subject(config.entry, chosen, config.timing, config.seed, config.output))
    wanted = {stage.subject.identity.key(one.point): one for one in stage.choose()}
    known = stage.known()
    missing = {key: one for key, one in wanted.items() if key not in known}
    found = {**known, **(stage.count(missing) if missing else {})}
    rows = [row.model_copy(update={"role": one.role}) for key, one in wanted.items() for row in found[key]]
    write_lines(stage.path, rows)
    stage.forget(rows)
    if not missing:
        reason = f"{stage.path} holds every point" if rows else f"no provider of {stage.subject.title} can be"
        console.print(f"Nothing to count: {reason}.", highlight=False, soft_wrap=True)
        return
    show(rows, stage.subject.title)
    reports = dict.fromkeys(row.report for row in rows if row.report)
    where = "".join(f", report: {config.artifacts / name}" for name in reports)
    console.print(f"{len(rows)} rows: {stage.path}{where}", highlight=False, soft_wrap=True)


class Counters:
    """One run over points of one kernel on one device."""

    def __init__(self, config: CountersConfig, subject: Subject) -> None:
        self.config = config
        self.subject = subject
        name = subject.entry.name
        self.path = results.counters_path(subject.output, name, subject.slug)
        self.folder = config.artifacts / "counters" / name / subject.slug
        self.instrument = instrument(INSTRUMENT, config.sets)
        results.asked_for(results.counters_path(config.output, name, subject.slug))
        self.folder.parent.mkdir(parents=True, exist_ok=True)

    def choose(self) -> list[Chosen]:
        """The points to look into. Raises UserError for options that leave none."""
        config, kernel = self.config, self.subject.kernel
        points, left_out = self.subject.points(
            config.preset.name, config.pin, config.provider, "cuda", config.preset.few
        )
        timed = self.subject.timed(warn)
        if config.provider is None:
            found = best_default_baseline(kernel, points, timed)
        else:
            found = each_provider(kernel, points, timed)
        if not found and (config.provider or config.pin):
            raise UserError(
                f"these options leave no point of {self.subject.entry.name} to look into. "
                f"{' '.join(left_out)} "
                f"provider= takes {', '.join(p.name for p in kernel.providers if 'cuda' in p.devices)}."
            )
        return found

    def known(self) -> dict[str, list[CounterRow]]:
        """By key the rows that need no second look: all kernels of the point were counted, with all that
        is asked for now. None where a report is named, which is to be read."""
        if self.config.report is not None:
            return {}
        found: dict[str, list[CounterRow]] = {}
        for row in read_lines(self.path, CounterRow, warn):
            found.setdefault(str(row.key), []).append(row)
        return {
            key: rows
            for key, rows in found.items()
            if all(row.status == "ok" and row.instrument == self.instrument for row in rows)
        }

    def count(self, missing: Mapping[str, Chosen]) -> dict[str, list[CounterRow]]:
        """The rows of points by key, counted now, or where that can't be, with the reason."""
        report = self.config.report or self.folder / f"{digest(sorted(missing))[:8]}.ncu-rep"
        try:
            tool, failures = self.session(missing, report)
            made = report.is_file()
            found = self.read(tool, report, missing) if made else {}
        except Unavailable as unavailable:
            if self.config.report is not None:
                raise UserError(f"{self.config.report} can't be read: {unavailable}.") from unavailable
            return {
                key: [
                    CounterRow(
                        **self.common(key, one),
                        status="unavailable",
                        reason=unavailable.reason,
                        fix=unavailable.fix,
                        sentence=f"unavailable: {unavailable}",
                    )
                ]
                for key, one in missing.items()
            }
        place = str(report.relative_to(self.config.artifacts)) if made and not self.config.report else None
        rows: dict[str, list[CounterRow]] = {}
        for key, one in missing.items():
            common = {**self.common(key, one), "tool": tool.name, "report": place}
            rows[key] = counted(found.get(key, ()), failures.get(key), common)
        return rows

    def common(self, key: str, one: Chosen) -> dict[str, Any]:
        """What all rows of a point share."""
        return {
            **joined(one.point, key),
            "role": one.role,
            "environment": self.subject.environment.digest,
            "instrument": self.instrument,
        }

    def session(self, missing: Mapping[str, Chosen], report: Path) -> tuple[Ncu, dict[str, str]]:
        """Have ncu write the report, unless one was named; the tool, and by key what failed in its process.
        There is no report where that launched no kernel.

        Raises Unavailable where counters can't be read.
        """
        config, chosen = self.config, self.subject.device
        if config.report is not None:
            if not config.report.is_file():
                raise UserError(f"report={config.report} is not there.")
            return ncu.find_ncu(), {}
        if chosen.kind != "cuda":
            raise ncu.NO_GPU
        tool = ncu.find_ncu()
        with tempfile.TemporaryDirectory() as folder, DeviceLock(chosen, config.wait_s, warn):
            plan, failures = Path(folder, "plan.json"), Path(folder, "failures.json")
            points = [{"key": key, "point": one.point.model_dump()} for key, one in missing.items()]
            where = self.subject.entry.loaded.where
            plan.write_text(json.dumps({"where": where, "seed": config.seed, "points": points}))
            os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes for ncu to watch
            if chosen.uuid is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = chosen.uuid
            command = [sys.executable, "-m", "pipeline.inspection.counted", str(plan), str(failures)]
            with console.status(f"Counting {len(missing)} points …"):
                tool.profile(command, report.absolute(), config.sets, config.timeout_s, ROOT)
            return tool, json.loads(failures.read_text()) if failures.is_file() else {}

    def read(self, tool: Ncu, report: Path, keys: Collection[str]) -> dict[str, list[dict[str, Any]]]:
        """What a report holds by key; its pages are kept among this machine's. Raises UserError, with nothing
        written, where a report that was named holds none of the keys."""
        pages = {page: tool.page(report, page) for page in ("raw", "details")}
        found = by_point(pages["raw"], pages["details"])
        if self.config.report is not None and found.keys().isdisjoint(keys):
            raise UserError(
                f"report={report} holds no kernel of these points: it was made on another machine, at "
                "another commit or for other options, or is cut off; give the options that it was made "
                "with, or leave report= out to count anew."
            )
        for page, text in pages.items():
            write_atomically(self.folder / f"{report.stem}.{page}.csv", text.encode())
        return found

    def forget(self, rows: Sequence[CounterRow]) -> None:
        """Delete this machine's reports that no row names, with their pages."""
        reports = [*(Path(row.report) for row in rows if row.report), *filter(None, [self.config.report])]
        named = tuple({f"{path.stem}." for path in reports})
        for path in self.folder.glob("*"):
            if not path.name.startswith(named):
                path.unlink()


def counted(
    found: Sequence[Mapping[str, Any]], failure: str | None, common: Mapping[str, Any]
) -> list[CounterRow]:
    """A row for each kernel that a point launched; for a point without any, a row that says so."""
    rows = []
    for numbers in found:
        what, sentence = bound(numbers)
        rows.append(CounterRow(status="ok", bound=what, sentence=sentence, **common, **numbers))
    if not rows:
        reason = failure or "ncu saw no kernel of it"
        rows.append(CounterRow(status="error", reason=reason, sentence=f"not counted: {reason}", **common))
    return rows


def show(rows: Sequence[CounterRow], title: str) -> None:
    """Print a line a kernel, and below what limits it; where nothing was counted, the reason once."""
    missing = {row.sentence for row in rows if row.status == "unavailable"}
    if missing:
        console.print(f"{title}: counters are {' '.join(sorted(missing))}.", highlight=False, soft_wrap=True)
    there = [row for row in rows if row.status != "unavailable"]
    if not there:
        return
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("point", overflow="fold")
    for name in ("us", "memory %", "compute %", "DRAM GB/s", "L2 hit %", "occup. %", "regs", "waves"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in there:
        figures = (row.memory_throughput_pct, row.compute_throughput_pct, row.dram_gbps, row.l2_hit_pct)
        rest = (row.achieved_occupancy_pct, row.registers, row.waves_per_sm)
        shown.add_row(
            f"{name_of(row)} ({row.role})", number(row.duration_us), *map(number, (*figures, *rest))
        )
    print_wide(console, shown)
    for row in there:
        text = f"{name_of(row)}, {row.function or 'no kernel'}: {row.sentence}"
        console.print(text, highlight=False, soft_wrap=True, markup=False)


def name_of(row: CounterRow) -> str:
    """A row's point as people write it: ``triton_online 1024x8w float32 4096``."""
    assert row.point is not None, "what is counted is a point's"
    return " ".join(filter(None, [label(row.point), words(row.point), extent(row.point)]))


if __name__ == "__main__":
    run_each("counters", CountersConfig, run)
