"""A kernel's section of the report: its charts, its tables, and the points without a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from . import gpus, why
from .cells import TIE_NOTE, incomparable_notes, ratio_cell, remarks, time_cell
from .content import Content
from .document import Charts, Items, Section, Text
from .frames import best_providers
from .headlines import doubt, entry_of
from .numbers import GAP, RATES, number, percent
from .tables import TextTable

SIDE_BY_SIDE = {2: 2, 4: 2}
"""The number of charts in a row, by the number of machines; three for any other number."""

CHARTS_NOTE = (
    "Each provider at its best configuration for the problem. Every machine has its own scale. The dashed "
    "line is the rate of a plain copy there or, in TFLOP/s, of a matrix product."
)
HOLLOW_NOTE = " Hollow marks are not to be trusted."

ROOFLINE_NOTE = (
    "The fastest provider at each problem. Dashed: the rates of a plain copy and of a matrix product. "
    "Filled marks stand at the fewest bytes that the operation needs, hollow marks at the bytes that "
    "the device counted."
)

SWEEPS_NOTE = (
    "Times of the sweeps, one measurement for each configuration. If the best configurations were "
    "measured side by side in finals, prefer those times: see Against the field."
)

OLD = "†"

OLD_NOTE = (
    f"{OLD} old: measured by another source or version of the measuring code than those of this commit, "
    "or in an earlier environment."
)


def section(content: Content, name: str) -> Section:
    """Return a kernel's section."""
    rows = content.rows[content.rows["kernel"] == name]
    best = content.best[content.best["kernel"] == name]
    about = content.about[name]
    blocks: list[Any] = [Text(about.summary.replace("``", "`"), has_code=True)]
    for plot, charts in content.plots[name]:
        columns = SIDE_BY_SIDE.get(len({chart.gpu for chart in charts}), 3)
        blocks.append(Charts(plot.title, charts, columns, f"plots/{plot.name}.svg"))
    if content.plots[name]:
        blocks.append(Text(CHARTS_NOTE + HOLLOW_NOTE * bool(best["valid"].eq(False).any()), "note"))
    if best.empty:
        blocks.append(Text("No point of this kernel was timed."))
    else:
        blocks += _tables(content, name, rows, best)
    if without := _without_a_time(content, rows):
        blocks.append(Section("Without a time", [Items(without)]))
    if met := [one for one in content.common_problems if one.kernel == name]:
        table = gpus.table(met, f"{name}: GPU against GPU", content.machines)
        blocks.append(Section("GPU against GPU, problem by problem", [table], is_folded=True))
    if roofs := content.rooflines[name]:
        note = Text(ROOFLINE_NOTE, "note")
        blocks.append(Section("Roofline", [Charts(f"{name}: roofline", roofs), note], is_folded=True))
    blocks += why.sections(name, content.machines, content.evidence, content.loaded.results.measurements)
    return Section(name, blocks, {"kernel": name})


def _tables(content: Content, name: str, rows: pd.DataFrame, best: pd.DataFrame) -> list[Any]:
    """Return the table of the best configurations with its notes, and the table of every provider's."""
    about = content.about[name]
    rates = [rate for rate in RATES if rate in set(best["headline"])]
    lines = _lines(content, best_providers(best), rates)
    shown = _with_gaps(lines, rows, content.machines)
    columns = ["us", *(RATES[rate] for rate in rates), "of ceiling", f"x {about.baseline}"]
    blocks: list[Any] = [
        TextTable(
            title=f"{name}: best configurations",
            columns=["problem", "dtype", "machine", "best configuration", *columns],
            rows=[cells for _, cells in shown],
            numbers=columns,
            about=[known for known, _ in shown],
        )
    ]
    notes = [
        (SWEEPS_NOTE, any(one.point.kernel == name for one in content.loaded.finals)),
        (TIE_NOTE, best["tied"].any()),
        (OLD_NOTE, best["old"].ne("").any()),
    ]
    if said := " ".join(note for note, holds in notes if holds):
        blocks.append(Text(said, "note"))
    records: list[Any] = best.to_dict("records")
    distrusted = {f"{content.machines[row['gpu']]}: {doubt(row)}" for row in records if doubt(row)}
    blocks += [Text(sentence, "alarm") for sentence in incomparable_notes(records)]
    blocks += [Text(f"! Not to be trusted on {sentence}", "alarm") for sentence in sorted(distrusted)]
    every = _lines(content, best.sort_values(["rank", "median_us", "provider"]), rates, errors=True)
    if len(every) > len(lines):
        table = TextTable(
            title=f"{name}: every provider at its best configuration",
            columns=["problem", "dtype", "machine", "configuration", "us", "±", *columns[1:]],
            rows=[cells for _, cells in every],
            numbers=["±", *columns],
            about=[known for known, _ in every],
            is_packed=True,
        )
        title = "Every provider at its best configuration"
        blocks.append(Section(title, [table], is_folded=True, look="every"))
    return blocks


Line = tuple[dict[str, str], list[str]]
"""A table row: its attributes in an HTML page, and its cells."""


def _lines(content: Content, best: pd.DataFrame, rates: Sequence[str], *, errors: bool = False) -> list[Line]:
    """Return rows as text, ordered by problem, then by machine as in the report."""
    place = {slug: i for i, slug in enumerate(content.machines)}
    found = []
    records: list[Any] = best.to_dict("records")
    for row in sorted(records, key=lambda row: (row["rank"], place[row["gpu"]])):
        known = {
            "gpu": row["gpu"],
            "words": row["words"],
            "provider": row["provider"],
            "sort": str(row["rank"]),
        }
        share = percent(row["ceiling_fraction"])
        cells = [
            row["extent"],
            row["words"],
            content.machines[row["gpu"]],
            row["label"]
            + " (baseline)" * (row["provider"] == content.about[row["kernel"]].baseline) * errors,
            time_cell(row).replace("!", "") + OLD * bool(row["old"]) + "!" * ("!" in time_cell(row)),
            *([f"{100 * row['rel_ci']:.1f} %"] if errors else ()),
            *(number(row[name]) if row["headline"] == name else "" for name in rates),
            share + " (compute)" * (bool(share) and row["bound"] == "compute"),
            ratio_cell(row),
        ]
        found.append((known | {"style": content.styles[row["provider"]].name}, cells))
    return found


def _with_gaps(lines: Sequence[Line], rows: pd.DataFrame, names: Mapping[str, str]) -> list[Line]:
    """Add a line at each problem for every GPU that has ``rows`` of the kernel but no line there.

    The added line says whether the GPU has no time there, or was not measured.
    """
    gpus_here = [slug for slug in names if slug in set(rows["gpu"]) and not slug.startswith("cpu-")]
    tried = set(rows[["rank", "gpu"]].drop_duplicates().itertuples(index=False, name=None))
    place = {slug: i for i, slug in enumerate(names)}
    found = []
    for sort, at_problem in groupby(lines, key=lambda line: line[0]["sort"]):
        here = list(at_problem)
        known, cells = here[0]
        for slug in gpus_here:
            if slug not in {one["gpu"] for one, _ in here}:
                label = "no time" if (int(sort), slug) in tried else GAP
                gap = {"gpu": slug, "words": known["words"], "sort": sort}
                here.append((gap, [*cells[:2], names[slug], label, *[""] * (len(cells) - 4)]))
        found += sorted(here, key=lambda line: place[line[0]["gpu"]])
    return found


def _without_a_time(content: Content, rows: pd.DataFrame) -> list[str]:
    """Return why points of requested providers have no time, by machine."""
    failed: list[Any] = rows[rows["status"] != "ok"].to_dict("records")
    wanted = [row for row in failed if _is_wanted(row["kernel"], row["provider"], row["command"])]
    return [
        f"{name}: {remark}"
        for slug, name in content.machines.items()
        for remark in remarks(row for row in wanted if row["gpu"] == slug)
    ]


def _is_wanted(kernel: str, provider: str, command: str) -> bool:
    """Return whether the report shows a provider's failures.

    A provider that needs an extra package is measured wherever the package is installed. Its failures are
    shown only if the command named it.
    """
    entry = entry_of(kernel)
    declared = {} if entry is None else {one.name: one for one in entry.loaded.kernel.providers}
    if provider not in declared or declared[provider].requires is None:
        return True
    named = re.findall(r"\bprovider=\[?([\w.+,\- ]*)", command)
    return provider in {one.strip() for names in named for one in names.split(",")}
