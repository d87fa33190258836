"""Stage ``report``: write pages with every machine's results side by side.

    python -m pipeline.report
    python -m pipeline.report device=cpu
    python -m pipeline.report input=outputs output=outputs/reports

Reads all results under ``input`` and writes pages, plots, metrics and data to ``output``. The same results
give the same bytes, on any machine and on any day. A CPU's results stay on its host. On such a
host the report covers this CPU beside the repository's GPUs, and goes to ``local/``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device

from . import ROOT
from .command.options import ReportConfig
from .command.run import console, run_stage, say
from .reporting import overview, report_page, summary
from .reporting.content import Content, compose
from .reporting.data_files import PLOT_COLUMNS, as_csv, best_csv, file_columns
from .reporting.document import overview_svg, plot
from .reporting.loading import load
from .reporting.overview import STYLES, overview_plot
from .store import comparisons, held_out
from .store.evidence import load as load_evidence
from .store.results import asked_for, folder_for, folders_of, inside, machines_first_gpus

GLOSSARY = ROOT / "docs" / "glossary.md"

FOLDERS = ("data", "metrics", "plots")
"""The folders inside a report."""

MAX_UNREADABLE = 5
"""The maximum number of listed lines of ledgers that can't be read; the others are counted."""


def run(config: ReportConfig) -> None:
    """Write the report and show this machine's part of it."""
    here = device.resolve(config.device)
    if not config.input.is_dir():
        raise UserError(f"input={config.input} is not a folder with results; run `dvc repro` to get some.")
    sentences: list[str] = []
    is_cpu = here.kind == "cpu"
    evidence = load_evidence(config.input, sentences.append, local=is_cpu)
    loaded = load(config.input, sentences.append, local=is_cpu)
    compared = comparisons.load(config.input, sentences.append, local=is_cpu)
    drawn = held_out.load(config.input, sentences.append, local=is_cpu)
    asked_for(config.output / "report.html")
    output = folder_for(config.output, here.kind)
    unreadable = sentences[:MAX_UNREADABLE]
    for place in folders_of(config.input):
        unreadable = [sentence.replace(f"{place}/", "") for sentence in unreadable]
    if len(sentences) > MAX_UNREADABLE:
        unreadable.append(f"{len(sentences) - MAX_UNREADABLE} more lines are not readable either.")
    for sentence in unreadable:
        print(f"warning: {sentence}", file=sys.stderr)
    content = compose(loaded, evidence, list(compared.values()), drawn, unreadable)
    write(content, output)
    if not summary.show(console, output, here.slug):
        others = ", ".join(machines_first_gpus(content.rows["gpu"])) or "no other machine either"
        page = output / "report.html"
        say(f"{summary.without_table(here.slug)} The report shows {others}: {page}.")


def files(content: Content, glossary: str = "") -> dict[str, str]:
    """Return every file of the report by its path. ``glossary`` is the address of the glossary, empty without
    a link."""
    page, styles = report_page.page(content), report_page.page_styles(content)
    found = {
        "report.md": page.markdown(glossary),
        "report.html": page.html(styles),
        "metrics.json": json.dumps(overview.metrics(content.summaries, content.rows), indent=2) + "\n",
        "best.csv": best_csv(content.best, content.baselines),
    }
    found |= {f"metrics/{gpu}.json": text for gpu, text in overview.headlines(content.summaries).items()}
    for one, charts in (pair for some in content.plots.values() for pair in some):
        rows = one.rows.sort_values(["gpu", "panel", "provider", "x"])
        rows = rows.assign(workload=one.workload, words=rows["panel"], x_dimension=one.x_label)
        found[f"plots/{one.name}.svg"] = plot(one.name, charts, styles)
        found[f"data/{one.name}.csv"] = as_csv(rows, PLOT_COLUMNS)
    if view := overview_plot(content.side_by_side, content.machines):
        found["overview.svg"] = overview_svg(view, {one.name: (one.light, one.dark) for one in STYLES})
    return found


def write(content: Content, folder: Path) -> None:
    """Write every file of the report, and remove files of an earlier report that are not part of it."""
    is_here = folder.resolve().is_relative_to(ROOT) and GLOSSARY.is_file()
    found = files(content, os.path.relpath(GLOSSARY, folder) if is_here else "")
    for place in (folder, *(folder / name for name in FOLDERS)):
        if not inside(folder, place):
            raise UserError(
                f"{place} is a link that leads out of {folder}, where the report goes; remove it."
            )
    for name, text in found.items():
        write_atomically(folder / name, text.encode())
    before = [path for name in FOLDERS for path in sorted((folder / name).glob("*.*"))]
    for path in [*folder.glob("overview.svg"), *before]:
        if str(path.relative_to(folder)) not in found and is_ours(path):
            path.unlink()


def is_ours(path: Path) -> bool:
    """Whether this stage wrote the file. The stage removes no other files."""
    text = path.read_text(errors="replace")
    if path.parent.name == "metrics":
        return path.suffix == ".json" and overview.is_headline(text)
    if path.parent.name == "data":
        return path.suffix == ".csv" and text.startswith(",".join(file_columns(PLOT_COLUMNS)))
    name = f"plot-{path.stem}" if path.parent.name == "plots" else path.stem
    return path.suffix == ".svg" and f'id="{name}"' in text


if __name__ == "__main__":
    run_stage("report", ReportConfig, run)
