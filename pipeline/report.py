"""Stage ``report``: every machine's results side by side.

    python -m pipeline.report
    python -m pipeline.report device=cpu
    python -m pipeline.report input=outputs output=outputs/reports

Reads all that lies under ``input`` and writes pages, plots, metrics and data
to ``output``. The same results give the same bytes, on any machine and on any day. What a CPU gave stays on
its host: there the report of the repository's own results is of all GPUs and this CPU, and goes to
``local/``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline import UserError
from pipeline.command.options import ReportConfig
from pipeline.command.run import console, run_stage, say
from pipeline.execution import identity, versions
from pipeline.machine import device
from pipeline.machine.reaper import die_with
from pipeline.reporting import (
    best,
    closing,
    data_files,
    gpus,
    history,
    origin_section,
    pages,
    plots,
    shares,
    summary,
)
from pipeline.reporting.charts import of_drawing
from pipeline.reporting.content import About, Content, Plot, machines
from pipeline.reporting.drawings import Drawing, drawings
from pipeline.reporting.field import head_to_heads, head_to_heads_of_finals, preferred, rivals_of
from pipeline.reporting.frames import against_baseline, best_configurations, entry_of, frame_of_finals
from pipeline.reporting.ladder import ladder, rungs
from pipeline.reporting.landscapes import landscapes, timed
from pipeline.reporting.losses import losses
from pipeline.reporting.overview import overview
from pipeline.reporting.reading import RecordFilter
from pipeline.reporting.rival_times import Environments, RivalTimes
from pipeline.reporting.roofline import dram_bytes, roofline
from pipeline.reporting.tabulated import Tabulated, tabulated
from pipeline.store import comparisons, finals, provenance, results
from pipeline.store.comparisons import Comparison
from pipeline.store.environment import Environment
from pipeline.store.evidence import Evidence
from pipeline.store.evidence import load as load_evidence
from pipeline.store.files import write_atomically
from pipeline.store.finals import Final
from pipeline.store.record import Measurement
from pipeline.store.results import Results, asked_for, folder_for, folders_of, inside
from pipeline.timing.settings import TimingSettings

PLOT_COLUMNS = [
    *("workload", "x_dimension", "x", "gbps", "tflops", "provider", "configuration", "gpu", "words"),
    *("median_us", "speedup", *data_files.MARKS),
]
"""The columns of ``data/NAME.csv`` and ``data/NAME.parquet``: the numbers of the plot of the same name.
``words`` are those of the plot's row of panels. In the files some have other names, with their units:
``data_files.NAMES``."""

WRITTEN = ("data", "ladder", "metrics", "plots", "roofline")
"""The folders of a report."""

MAX_UNREADABLE = 5
"""Past this, lines of ledgers that can't be read are counted and not listed."""


def run(config: ReportConfig) -> None:
    """Write the report and show this machine's part of it."""
    here = device.resolve(config.device)
    if not config.input.is_dir():
        raise UserError(f"input={config.input} is not a folder with results; run `dvc repro` to get some.")
    sentences: list[str] = []
    is_cpu = here.kind == "cpu"
    evidence = load_evidence(config.input, sentences.append, local=is_cpu)
    paths = results.ledgers(config.input, sentences.append, local=is_cpu)
    measured = tabulated(paths, explained(evidence), sentences.append)
    known = Results((), *results.machines(config.input, sentences.append, local=is_cpu))
    held = finals.load(config.input, sentences.append, local=is_cpu)
    compared = comparisons.load(config.input, sentences.append, local=is_cpu)
    asked_for(config.output / "report.html")
    output = folder_for(config.output, here.kind)
    unreadable = sentences[:MAX_UNREADABLE]
    for place in folders_of(config.input):
        unreadable = [sentence.replace(f"{place}/", "") for sentence in unreadable]
    if len(sentences) > MAX_UNREADABLE:
        unreadable.append(f"{len(sentences) - MAX_UNREADABLE} more lines are not readable either.")
    for sentence in unreadable:
        print(f"warning: {sentence}", file=sys.stderr)
    every_final = shares.of_records((row for rows in held.values() for row in rows), known.ceilings)
    runs = provenance.environments(folders_of(config.input, is_cpu))
    content = compose(measured, known, evidence, every_final, list(compared.values()), runs, unreadable)
    write(content, output)

    if not closing.show(console, output, here.slug):
        slugs = results.machines_first_gpus(content.rows["gpu"])
        others = ", ".join(slugs) or "no other machine either"
        page = output / "report.html"
        say(f"Nothing was measured on {here.slug} yet; the report shows {others}: {page}.")


def describe(kernel: str, providers: set[str]) -> About:
    """What the kernel says of itself; a kernel whose folder is gone is taken to follow the defaults."""
    entry = entry_of(kernel)
    rivals = rivals_of(kernel, providers)
    if entry is None:
        own = frozenset(name for name in providers if name.partition("_")[0] != "torch")
        return About(kernel, "Its folder is not in this commit.", "torch", own, rivals)
    declared = entry.loaded.kernel
    own = frozenset(provider.name for provider in declared.providers if provider.is_own)
    return About(kernel, entry.loaded.summary, declared.baseline, own, rivals)


def explained(evidence: Evidence) -> RecordFilter:
    """The measurements that evidence is about."""
    every = (evidence.profiles, evidence.counters, evidence.code)
    rows = [row for some in every for of_machine in some.values() for row in of_machine]
    return RecordFilter(
        frozenset(row.point for row in rows if row.point is not None),
        frozenset(row.key for row in rows if row.key is not None),
    )


def compose(
    measured: Tabulated,
    known: Results,
    evidence: Evidence,
    held: Sequence[Final],
    compared: Sequence[Comparison],
    runs: Mapping[str, Environment],
    unreadable: list[str],
) -> Content:
    """Work out everything that the report says; ``held`` are the finals of every run, ``runs`` the
    environments of runs, and ``known`` are the machines."""
    everything_held, held = held, finals.newest_with_ours(held)
    rows = shares.of_table(measured.rows, known.ceilings)
    shown = set(rows.loc[rows["key"].isin({row.key for row in measured.wanted}), "key"])
    explained_ = tuple(row for row in measured.wanted if row.key in shown)
    found = dataclasses.replace(known, measurements=explained_)
    stale = changed_since(measured.examples, found.environments)
    rows["stale"] = [stale[origin] for origin in rows.pop("origin")]
    rows["old"] = rows["stale"].map(", ".join)
    kernels = sorted(set(rows["kernel"]))
    providers = {name: set(rows.loc[rows["kernel"] == name, "provider"]) for name in kernels}
    for row in everything_held:
        providers.get(row.point.kernel, set()).add(row.point.provider)
    about = {name: describe(name, some) for name, some in providers.items()}
    baselines = {name: one.baseline for name, one in about.items()}
    fastest = against_baseline(best_configurations(rows), baselines)
    styles = plots.styles(rows["provider"])
    names = machines(found, rows["gpu"])
    panels = {slug: plots.Panel(slug, name, found.ceilings.get(slug)) for slug, name in names.items()}
    drawn: dict[str, list[Future[Plot]]] = {}
    maps: dict[str, Future[list[dict[str, Any]]]] = {}
    roofs: dict[str, Future[str]] = {}
    ladders: dict[str, Future[str]] = {}
    # What is drawn takes longer than all else, so that every core has its part.
    count = min(device.cpu_threads(), 2 * len(about))
    with ProcessPoolExecutor(max(1, count), get_context("fork"), drawer, (os.getpid(),)) as processes:
        for name, of_kernel in fastest.groupby("kernel"):
            of_machines = {slug: panels[slug] for slug in names if slug in set(of_kernel["gpu"])}
            of_name = drawings(str(name), rows[rows["kernel"] == name], of_kernel)
            drawn[str(name)] = [
                processes.submit(plotted, one, of_machines, panels, styles, baselines[str(name)])
                for one in of_name
            ]
            counted = {slug: dram_bytes(evidence.counters.get((str(name), slug), [])) for slug in of_machines}
            roofs[str(name)] = processes.submit(
                roofline, str(name), of_kernel, list(of_machines.values()), counted, styles
            )
            if not (of_problem := rungs(of_kernel)).empty:
                ladders[str(name)] = processes.submit(
                    ladder, str(name), of_problem, list(of_machines.values()), styles
                )
        for name in about:
            maps[name] = processes.submit(landscapes, timed(rows[rows["kernel"] == name]), names)
        rivals = {name: one.rivals for name, one in about.items()}
        times = RivalTimes(rows, everything_held, rivals, Environments(runs, found.environments))
        swept = head_to_heads(rows, {name: one.own for name, one in about.items()}, times)
        by_finals = head_to_heads_of_finals(everything_held, swept, times)
        field = preferred(swept, by_finals)
        of_finals = frame_of_finals(row for row in held if row.power == "burst")
        side_by_side = summary.side_by_side(field, rows, of_finals, baselines)
        common, others = gpus.compared(rows, of_finals)
        overview_drawn = processes.submit(overview, side_by_side, names)
        return Content(
            results=found,
            machines=names,
            rows=rows,
            best=fastest,
            field=field,
            losses=losses(swept, by_finals),
            summaries=summary.summaries(field, rows, of_finals, baselines),
            side_by_side=side_by_side,
            overview=overview_drawn.result(),
            common_problems=common,
            other_sources=others,
            finals=held,
            history=history.parts(everything_held),
            comparisons=compared,
            about=about,
            plots={name: [one.result() for one in some] for name, some in drawn.items()},
            landscapes={name: one.result() for name, one in maps.items()},
            rooflines={name: roof for name, svg in roofs.items() if (roof := svg.result())},
            ladders={name: svg.result() for name, svg in ladders.items()},
            evidence=evidence,
            styles=styles,
            unreadable=unreadable,
            otherwise=measured.count - len(rows),
        )


def drawer(parent: int) -> None:
    """What a process that draws does first: end with its parent, at once and without a word."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    die_with(parent)


def plotted(
    drawing: Drawing,
    here: dict[str, plots.Panel],
    panels: dict[str, plots.Panel],
    styles: Mapping[str, plots.Style],
    baseline: str,
) -> Plot:
    """A workload's plot: as a file of the machines ``here``, which have measured the kernel, and as charts of
    a page."""
    svg = plots.rate_against_x(drawing, machines_of(drawing.lines, here), styles)
    return Plot(drawing, svg, of_drawing(drawing, list(panels.values()), styles, baseline))


def machines_of(lines: pd.DataFrame, panels: dict[str, plots.Panel]) -> list[plots.Panel]:
    """The machines that have any of the lines."""
    return [panel for slug, panel in panels.items() if slug in set(lines["gpu"])]


def changed_since(
    measurements: Sequence[Measurement], environments: Mapping[str, Environment]
) -> list[tuple[str, ...]]:
    """What of ``origin_section.STALE`` a row was measured by that is not what is here now: another source, or
    none; another version of the measuring code; and another environment than its machine's, where that is
    known."""
    timer = TimingSettings().timer
    today: dict[tuple[str, str], str] = {}
    keyed: dict[tuple[str, str, str], str | None] = {}
    found = []
    for row in measurements:
        kernel, provider, gpu = row.point.kernel, row.point.provider, row.origin.gpu
        if (kernel, provider) not in today:
            today[kernel, provider] = source_of(kernel, provider)
        if (kernel, provider, gpu) not in keyed:
            known = environments.get(gpu)
            keyed[kernel, provider, gpu] = (
                origin_section.keyed_for(kernel, provider, known) if known else None
            )
        kind = "cpu" if gpu.startswith("cpu-") else "cuda"
        now = {
            "source": today[kernel, provider],
            "measurement": versions.measurement(kind, timer),
            "environment": keyed[kernel, provider, gpu] or row.parts.environment,
        }
        found.append(
            tuple(
                part
                for part in origin_section.STALE
                if not now[part] or getattr(row.parts, part) != now[part]
            )
        )
    return found


def source_of(kernel: str, provider: str) -> str:
    """The digest of what a provider runs now; empty for one that is not there."""
    entry = entry_of(kernel)
    try:
        if entry is None:
            return ""
        return identity.source(entry.loaded, entry.loaded.kernel.provider(provider)).digest
    except (KeyError, UserError):
        return ""


def write(content: Content, folder: Path) -> None:
    """Write every file of the report, and remove the plots that the results no longer have."""
    baselines = {kernel: about.baseline for kernel, about in content.about.items()}
    texts = {
        **pages.texts(content),
        "metrics.json": json.dumps(summary.metrics(content.summaries, content.rows), indent=2) + "\n",
    }
    data = {"best": (best.rows(content.best, baselines), best.COLUMNS)}
    texts |= {f"metrics/{gpu}.json": text for gpu, text in summary.headlines(content.summaries).items()}
    for plot in (plot for some in content.plots.values() for plot in some):
        lines = plot.drawing.lines.sort_values(["gpu", "panel", "provider", "x"])
        lines = lines.assign(
            workload=plot.drawing.workload, words=lines["panel"], x_dimension=plot.drawing.x_label
        )
        texts[f"plots/{plot.drawing.name}.svg"] = plot.svg
        data[f"data/{plot.drawing.name}"] = lines, PLOT_COLUMNS
    texts |= {f"roofline/{kernel}.svg": svg for kernel, svg in content.rooflines.items()}
    texts |= {f"ladder/{kernel}.svg": svg for kernel, svg in content.ladders.items()}
    if content.overview:
        texts["overview.svg"] = content.overview
    files = {name: text.encode() for name, text in texts.items()}
    for name, (rows, columns) in data.items():
        files[f"{name}.csv"] = data_files.csv(rows, columns).encode()
        files[f"{name}.parquet"] = data_files.parquet(rows, columns)
    for place in (folder, *(folder / name for name in WRITTEN)):
        if not inside(folder, place):
            raise UserError(
                f"{place} is a link that leads out of {folder}, where the report goes; remove it."
            )
    for name, written in files.items():
        write_atomically(folder / name, written)
    before = [*folder.glob("overview.svg"), *(one for name in WRITTEN for one in (folder / name).glob("*.*"))]
    for path in sorted(before):
        if str(path.relative_to(folder)) not in files and is_ours(path):
            path.unlink()


def is_ours(path: Path) -> bool:
    """Whether this stage wrote the file: no other may be removed."""
    columns = data_files.names(PLOT_COLUMNS)
    if path.suffix == ".parquet":
        return data_files.columns_of(path) == columns
    text = path.read_text(errors="replace")
    if path.name == "overview.svg" and path.parent.name not in WRITTEN:
        return 'id="overview"' in text
    if path.parent.name == "metrics":
        return path.suffix == ".json" and summary.is_headline(text)
    kind = {"plots": "plot"}.get(path.parent.name, path.parent.name)
    mark = {".svg": f'id="{kind}-{path.stem}"', ".csv": ",".join(columns)}.get(path.suffix)
    return mark is not None and mark in text


if __name__ == "__main__":
    run_stage("report", ReportConfig, run)
