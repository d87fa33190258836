"""Stage ``counters``: what Nsight Compute counts, in a launch of its own that nothing times.

    python -m pipeline.counters kernel=softmax
    python -m pipeline.counters kernel=softmax size=4096 sets=[SpeedOfLight,dram__bytes_read.sum]

Looks at the best own configuration by the ledger, the same provider's default one and the baseline, at a
small, a middle and a large size, all in one session of ncu. Where counters can't be read,
the rows say why and what to do.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

import kernels
from kernels.contract import Kernel
from pipeline import UserError
from pipeline.command.config import ROOT, CountersConfig, console, run_stage
from pipeline.inspection import ncu
from pipeline.inspection.ncu import Ncu, Unavailable
from pipeline.inspection.ncu_pages import bound, by_point
from pipeline.machine import device
from pipeline.machine.lock import DeviceLock
from pipeline.points import grid
from pipeline.points.choice import Chosen, best_default_baseline, each_provider, few, grids_of_first
from pipeline.reporting.table import number, print_wide
from pipeline.store import results
from pipeline.store.evidence import CounterRow, joined, write_lines
from pipeline.store.ledger import write_atomically

warn = partial(console.print, style="yellow", highlight=False, soft_wrap=True)


def run(config: CountersConfig) -> None:
    """Count, write rows and report, and print what limits each point."""
    chosen = device.resolve(config.device)
    kernel = kernels.load(config.kernel.name)
    points = choose(config, kernel, chosen)
    environment = device.fingerprint(chosen).digest
    sources = {p.name: grid.source_digest(kernel.name, p) for p in kernel.providers}
    keys = {
        grid.key(one.point, sources[one.point.provider], environment, config.timing, config.seed): one
        for one in points
    }
    folder = config.artifacts / "counters" / kernel.name
    folder.mkdir(parents=True, exist_ok=True)
    report = config.report or folder / f"{chosen.slug}.ncu-rep"
    made = False
    try:
        tool, failures = count(config, chosen, keys, report)
        made = report.is_file()
        found = read(config, tool, report, keys, folder / chosen.slug) if made else {}
        rows = counted(keys, found, failures, tool, environment)
        if made and config.report is None:
            place = str(report.relative_to(config.artifacts))
            rows = [row.model_copy(update={"report": place}) for row in rows]
    except Unavailable as missing:
        if config.report is not None:
            raise UserError(f"{config.report} can't be read: {missing}.") from missing
        rows = [
            CounterRow(
                **joined(one.point, key),
                role=one.role,
                status="unavailable",
                reason=missing.reason,
                fix=missing.fix,
                sentence=f"unavailable: {missing}",
                environment=environment,
            )
            for key, one in keys.items()
        ]
    path = results.counters_path(config.output, kernel.name, chosen.slug)
    write_lines(path, [row.model_dump(mode="json") for row in rows])
    show(rows, f"{kernel.name} on {chosen.slug}")
    where = f", report: {report}" if made else ""
    console.print(f"{len(rows)} rows: {path}{where}", highlight=False, soft_wrap=True)


def read(
    config: CountersConfig, tool: Ncu, report: Path, keys: Collection[str], base: Path
) -> dict[str, list[dict[str, Any]]]:
    """What a report holds by key; its pages are kept beside ``base``. Raises UserError, with nothing written,
    where a report that was named holds none of the keys."""
    pages = {page: tool.page(report, page) for page in ("raw", "details")}
    found = by_point(pages["raw"], pages["details"])
    if config.report is not None and found.keys().isdisjoint(keys):
        raise UserError(
            f"report={report} holds no kernel of these points: it was made on another machine, at another "
            "commit or for other options, or is cut off; give the options that it was made with, or leave "
            "report= out to count anew."
        )
    for page, text in pages.items():
        write_atomically(base.with_name(f"{base.name}.{page}.csv"), text.encode())
    return found


def choose(config: CountersConfig, kernel: Kernel, chosen: device.Device) -> list[Chosen]:
    """The points to look into. Raises UserError for pins that leave none."""
    grids = config.grids()
    sizes = config.size or few(map(int, grids[0]["size"]))
    points = [
        point
        for point in grid.expand(
            kernel, config.provider, grids_of_first(grids, sizes, config.dtype or grids[0]["dtype"][:1])
        )
        if "cuda" in kernel.provider(point.provider).devices
        and kernel.provider(point.provider).unsupported(point, kernel.shape_of(point)) is None
    ]
    timed = results.timed([config.output, ROOT / "results"], kernel.name, chosen.slug, warn)
    own = {provider.name for provider in kernel.providers if provider.source != "__init__.py"}
    if config.provider is None:
        found = best_default_baseline(points, timed, kernel.baseline, own.__contains__)
    else:
        found = each_provider(points, timed)
    if not found:
        raise UserError(
            f"these options leave no point of {kernel.name} to look into; "
            f"provider= takes {', '.join(p.name for p in kernel.providers if 'cuda' in p.devices)}."
        )
    return found


def count(
    config: CountersConfig, chosen: device.Device, keys: dict[str, Chosen], report: Path
) -> tuple[Ncu, dict[str, str]]:
    """Have ncu write the report, unless one was named; the tool, and by key what failed in its process. There
    is no report where that launched no kernel.

    Raises Unavailable where counters can't be read.
    """
    if config.report is not None:
        if not config.report.is_file():
            raise UserError(f"report={config.report} is not there.")
        return ncu.find_ncu(), {}
    if chosen.kind != "cuda":
        raise ncu.NO_GPU
    tool = ncu.find_ncu()
    with tempfile.TemporaryDirectory() as folder, DeviceLock(chosen, config.wait_s, warn):
        plan, failures = Path(folder, "plan.json"), Path(folder, "failures.json")
        wanted = [{"key": key, "point": asdict(one.point)} for key, one in keys.items()]
        plan.write_text(json.dumps({"points": wanted, "seed": config.seed}))
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes for ncu to watch
        if chosen.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = chosen.uuid
        command = [sys.executable, "-m", "pipeline.inspection.counted", str(plan), str(failures)]
        with console.status(f"Counting {len(keys)} points …"):
            tool.profile(command, report.absolute(), config.sets, config.timeout_s, ROOT)
        return tool, json.loads(failures.read_text()) if failures.is_file() else {}


def counted(
    keys: dict[str, Chosen],
    found: dict[str, list[dict[str, Any]]],
    failures: dict[str, str],
    tool: Ncu,
    environment: str,
) -> list[CounterRow]:
    """A row for each kernel that a point launched; for a point without any, a row that says so."""
    rows = []
    for key, one in keys.items():
        common = {**joined(one.point, key), "role": one.role, "tool": tool.name, "environment": environment}
        for numbers in found.get(key, ()):
            what, sentence = bound(numbers)
            rows.append(CounterRow(status="ok", bound=what, sentence=sentence, **common, **numbers))
        if key not in found:
            reason = failures.get(key, "ncu saw no kernel of it")
            sentence = f"not counted: {reason}"
            rows.append(CounterRow(status="error", reason=reason, sentence=sentence, **common))
    return rows


def show(rows: Sequence[CounterRow], title: str) -> None:
    """Print a line a kernel, and below what limits it; where nothing was counted, the reason once."""
    missing = {row.sentence for row in rows if row.status == "unavailable"}
    if missing:
        console.print(f"{title}: counters are {' '.join(sorted(missing))}.", highlight=False, soft_wrap=True)
        return
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("point", overflow="fold")
    for name in ("size", "us", "memory %", "compute %", "DRAM GB/s", "L2 hit %", "occup. %", "regs", "waves"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        figures = (row.memory_throughput_pct, row.compute_throughput_pct, row.dram_gbps, row.l2_hit_pct)
        rest = (row.achieved_occupancy_pct, row.registers, row.waves_per_sm)
        name = f"{label_of(row)} ({row.role})"
        shown.add_row(name, row.extent, number(row.duration_us), *map(number, (*figures, *rest)))
    print_wide(console, shown)
    for row in rows:
        text = f"{label_of(row)} {row.extent}, {row.function or 'no kernel'}: {row.sentence}"
        console.print(text, highlight=False, soft_wrap=True, markup=False)


def label_of(row: CounterRow) -> str:
    """A row's configuration as people write it."""
    return results.label(row.model_dump())


if __name__ == "__main__":
    run_stage("counters", CountersConfig, run)
