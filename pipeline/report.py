"""The report stage: every machine's results side by side.

``python -m pipeline.report`` reads all that lies under ``input`` and writes pages, plots, metrics and
data to ``output``. The same results give the same bytes, on any machine and on any day.
"""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

import kernels
from pipeline import UserError
from pipeline.command.config import ReportConfig, console, run_stage
from pipeline.machine import device
from pipeline.points import grid
from pipeline.reporting import pages, plots, table
from pipeline.reporting.field import meetings
from pipeline.reporting.pages import About, Content
from pipeline.reporting.roofline import dram_bytes, roofline
from pipeline.store.evidence import Evidence
from pipeline.store.evidence import load as load_evidence
from pipeline.store.ledger import write_atomically
from pipeline.store.record import Status
from pipeline.store.results import (
    BY_SIZE,
    Results,
    against_baseline,
    axes,
    best_configurations,
    best_providers,
    frame,
    load,
    without_rows,
)

PLOT_COLUMNS = ["size", "gbps", "provider", "configuration", "gpu", "dtype", "median_us", "speedup"]
"""The columns of ``plots/KERNEL.csv``, for ``dvc plots``: every provider's best configuration at the kernel's
own number of rows."""

BEST_COLUMNS = [
    *("kernel", "dtype", "size", "rows", "gpu", "provider", "block_size", "num_warps", "num_stages"),
    *("median_us", "p20_us", "p80_us", "rel_ci", "gbps", "tflops", "bound", "ceiling_fraction"),
    *("baseline", "speedup", "valid", "commit", "dirty"),
]
"""The columns of ``best.csv``: the best configuration of any provider; ``rows`` is empty where they are the
kernel's own."""

MAX_UNREADABLE = 5
"""Past this, lines of ledgers that can't be read are counted and not listed."""


def run(config: ReportConfig) -> None:
    """Write the report and show this machine's part of it."""
    here = device.resolve(config.device).slug
    if not config.input.is_dir():
        raise UserError(f"input={config.input} is not a folder with results; run `dvc repro` to get some.")
    sentences: list[str] = []
    results = load(config.input, sentences.append)
    evidence = load_evidence(config.input, sentences.append)
    unreadable = [sentence.replace(f"{config.input}/", "") for sentence in sentences[:MAX_UNREADABLE]]
    if len(sentences) > MAX_UNREADABLE:
        unreadable.append(f"{len(sentences) - MAX_UNREADABLE} more lines are not readable either.")
    for sentence in unreadable:
        print(f"warning: {sentence}", file=sys.stderr)
    content = compose(results, evidence, unreadable)
    write(content, config.output)

    baselines = {name: about.baseline for name, about in content.about.items()}
    page = config.output / "report.html"
    mine = [row for row in results.measurements if row.origin.gpu == here]
    if mine:
        table.show(console, mine, baselines, str(page))
    else:
        others = ", ".join(results.gpus) or "no other machine either"
        console.print(f"Nothing was measured on {here} yet; the report shows {others}.", soft_wrap=True)
    console.print(f"All machines side by side: {page}. Every run in MLflow: make ui.", soft_wrap=True)


def describe(kernel: str, providers: set[str]) -> About:
    """What the kernel says of itself; a kernel whose folder is gone is taken to follow the defaults."""
    try:
        contract = kernels.load(kernel)
    except KeyError:
        own = frozenset(name for name in providers if not name.startswith("torch"))
        return About(kernel, "Its folder is not in this commit.", "as it was measured", "torch", own)
    summary = (importlib.import_module(f"kernels.{kernel}").__doc__ or "").split("\n\n")[0]
    own = frozenset(p.name for p in contract.providers if p.source != "__init__.py")
    return About(kernel, " ".join(summary.split()), contract.size_means, contract.baseline, own)


def compose(results: Results, evidence: Evidence, unreadable: list[str]) -> Content:
    """Work out everything that the report says."""
    rows = frame(results.measurements)
    rows["changed"] = changed_since(rows)
    about = {
        name: describe(name, set(rows.loc[rows["kernel"] == name, "provider"])) for name in results.kernels
    }
    baselines = {name: one.baseline for name, one in about.items()}
    best = against_baseline(best_configurations(rows), baselines)
    styles = plots.styles(rows["provider"])
    names = pages.machines(results)
    drawn, roofs = {}, {}
    for name, of_kernel in without_rows(best).groupby("kernel"):
        timed = [slug for slug in names if slug in set(of_kernel["gpu"])]
        copies = {slug: ceilings.copy_gbps for slug, ceilings in results.ceilings.items()}
        panels = [plots.Panel(slug, names[slug], copies.get(slug)) for slug in timed]
        drawn[str(name)] = plots.rate_against_size(
            str(name), about[str(name)].size_means, of_kernel, panels, styles
        )
        counted = {slug: dram_bytes(evidence.counters.get((str(name), slug), [])) for slug in timed}
        roofs[str(name)] = roofline(str(name), of_kernel, panels, results.ceilings, counted, styles)
    return Content(
        results=results,
        rows=rows,
        best=best,
        field=meetings(rows, {name: one.own for name, one in about.items()}, baselines),
        about=about,
        metrics=metrics(rows, about),
        plots=drawn,
        rooflines=roofs,
        evidence=evidence,
        styles=styles,
        unreadable=unreadable,
    )


def changed_since(rows: pd.DataFrame) -> pd.Series:
    """Whether what a row was measured from is not what is here now: another source, or none."""
    today: dict[tuple[str, str], str] = {}
    for kernel, provider in rows[["kernel", "provider"]].drop_duplicates().itertuples(index=False):
        try:
            today[kernel, provider] = grid.source_digest(kernel, kernels.load(kernel).provider(provider))
        except KeyError:
            # A peer whose package is missing here, or a kernel whose folder is gone.
            with suppress(OSError):
                today[kernel, provider] = grid.peer_digest(kernel)
    pairs = zip(rows["kernel"], rows["provider"], rows["source"], strict=True)
    return pd.Series(
        [today.get((kernel, name)) != source for kernel, name, source in pairs], index=rows.index
    )


def metrics(rows: pd.DataFrame, about: dict[str, About]) -> dict[str, Any]:
    """Kernel -> GPU -> numbers: for each dtype geometric means over the sizes of the best provider's rate
    and share of the ceiling, and of the best own provider's speedup; and the points by status.

    Timings not to be trusted, and those at other rows than the kernel's own, count as points only.
    """
    baselines = {name: one.baseline for name, one in about.items()}
    best = without_rows(against_baseline(best_configurations(rows[~rows["valid"].eq(False)]), baselines))
    found: dict[str, Any] = {}
    for (kernel, gpu), points in rows.groupby(["kernel", "gpu"]):
        numbers: dict[str, Any] = {}
        for dtype, timed in best[(best["kernel"] == kernel) & (best["gpu"] == gpu)].groupby("dtype"):
            top = best_providers(timed)
            own = best_providers(timed[timed["provider"].isin(about[str(kernel)].own)])
            means = {
                "gbps": geometric_mean(top["gbps"]),
                "ceiling_fraction": geometric_mean(top["ceiling_fraction"]),
                "own_speedup": geometric_mean(own["speedup"]),
            }
            numbers[str(dtype)] = {name: mean for name, mean in means.items() if mean is not None}
        count = points["status"].value_counts()
        numbers["points"] = {status: int(count.get(status, 0)) for status in get_args(Status)}
        found.setdefault(str(kernel), {})[str(gpu)] = numbers
    return found


def geometric_mean(values: pd.Series) -> float | None:
    """The geometric mean of what is known, to six digits; None if nothing is."""
    known = values.dropna().astype(float)
    return None if known.empty else float(f"{np.exp(np.log(known).mean()):.6g}")


def write(content: Content, folder: Path) -> None:
    """Write every file of the report, and remove the plots of kernels that the results no longer have."""
    best = best_providers(content.best)
    best = best.assign(baseline=best["kernel"].map({k: a.baseline for k, a in content.about.items()}))
    texts = {
        "report.md": pages.markdown(content),
        "report.html": pages.html(content),
        "field.md": pages.field_markdown(content),
        "field.html": pages.field_html(content),
        "metrics.json": json.dumps(content.metrics, indent=2) + "\n",
        "best.csv": csv(
            best.sort_values(["kernel", "dtype", *BY_SIZE, "gpu"], na_position="first"), BEST_COLUMNS
        ),
    }
    for kernel, svg in content.plots.items():
        lines = without_rows(content.best[content.best["kernel"] == kernel])
        lines = lines.sort_values(["gpu", "dtype", "provider", "size"])
        lines = lines.assign(configuration=[axes(row) for row in lines.to_dict("records")])
        texts[f"plots/{kernel}.svg"] = svg
        texts[f"plots/{kernel}.csv"] = csv(lines, PLOT_COLUMNS)
    texts |= {f"roofline/{kernel}.svg": svg for kernel, svg in content.rooflines.items()}
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    for path in sorted([*(folder / "plots").glob("*.*"), *(folder / "roofline").glob("*.svg")]):
        if f"{path.parent.name}/{path.name}" not in texts and is_plot(path):
            path.unlink()


def csv(rows: pd.DataFrame, columns: list[str]) -> str:
    """Rows as CSV, times and rates to six digits, launch parameters as whole numbers."""
    whole = {name: "Int64" for name in ("rows", "block_size", "num_warps", "num_stages") if name in columns}
    return rows[columns].astype(whole).to_csv(index=False, float_format="%.6g", lineterminator="\n")


def is_plot(path: Path) -> bool:
    """Whether this stage wrote the file: no other may be removed."""
    kind = {"plots": "plot"}.get(path.parent.name, path.parent.name)
    mark = {".svg": f'id="{kind}-{path.stem}"', ".csv": ",".join(PLOT_COLUMNS)}.get(path.suffix)
    return mark is not None and mark in path.read_text(errors="replace")


if __name__ == "__main__":
    run_stage("report", ReportConfig, run)
