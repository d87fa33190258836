"""A kernel's section of the report: its charts, its tables, and what could not be timed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.reporting import gpus_section
from pipeline.reporting.content import About, Content
from pipeline.reporting.frames import best_providers, entry_of
from pipeline.reporting.numbers import GAP, RATES, microseconds, number, percent
from pipeline.reporting.plots import Style
from pipeline.reporting.ranking import doubt, is_bound, is_distrusted
from pipeline.reporting.table import INCOMPARABLE, TIE_NOTE, incomparable_notes, ratio_cell, remarks
from pipeline.reporting.why import sections

SIDE_BY_SIDE = {2: 2, 4: 2}
"""How many charts stand side by side, by the number of machines; else three."""

SWEPT_NOTE = (
    "Times of the sweeps, one measurement a configuration. Where finals measured the best side by side, "
    "their times are the better ones: the page field has them."
)

OLD = "†"

OLD_NOTE = (
    f"{OLD} old: measured by another source or version of the measuring code than those of this commit, "
    "or in an earlier environment."
)


def section(content: Content, name: str, machine_names: Mapping[str, str]) -> dict[str, Any]:
    """One kernel's section."""
    rows = content.rows[content.rows["kernel"] == name]
    best = content.best[content.best["kernel"] == name]
    about = content.about[name]
    winners = best_providers(best).sort_values("rank")
    order = [slug for slug in machine_names if slug in set(rows["gpu"])]
    untimed = _untimed(rows)
    rates = _rates(best)
    tables = []
    for words, of_words in winners.groupby("words", sort=False):
        some = _rates(of_words)
        shown = _with_gaps(_lines(of_words, machine_names, about, content.styles, some), rows, machine_names)
        tables.append({"words": words, "rates": [RATES[one] for one in some], "lines": shown})
    every = best.sort_values(["rank", "median_us", "provider"])
    met = [one for one in content.common_problems if one.kernel == name]
    drawn = content.plots.get(name, ())
    return {
        "name": name,
        "summary": about.summary,
        "baseline": about.baseline,
        "rates": [RATES[one] for one in rates],
        "plots": [
            {
                "file": f"plots/{plot.drawing.name}.svg",
                "title": f"{name}, {plot.drawing.workload}: "
                f"{RATES[plot.drawing.headline]} against {plot.drawing.x_label}",
                "workload": plot.drawing.workload,
                "charts": [chart.view for chart in plot.charts],
                "columns": SIDE_BY_SIDE.get(len({gpu for chart in plot.charts for gpu in chart.gpus}), 3),
            }
            for plot in drawn
        ],
        "roofline": name in content.rooflines,
        "ladder": name in content.ladders,
        "panels": best["gpu"].nunique(),
        "landscapes": content.landscapes[name],
        "gpus": gpus_section.lines(met, machine_names),
        "gpu_charts": [chart.view for chart in gpus_section.charts(drawn, met, machine_names)],
        "why": sections(name, machine_names, content.evidence, content.results.measurements),
        "tables": tables,
        "lines": _with_gaps(
            _lines(winners, machine_names, about, content.styles, rates), rows, machine_names
        ),
        "everything": _packed(_lines(every, machine_names, about, content.styles, rates)),
        "untimed": [
            (machine_names[slug], [str(remark) for remark in remarks(here)])
            for slug in order
            if (here := [row for row in untimed if row["gpu"] == slug])
        ],
        "ties": " ".join(
            note
            for note, told in (
                (SWEPT_NOTE, any(one.point.kernel == name for one in content.finals)),
                (TIE_NOTE, best["tied"].any()),
                (OLD_NOTE, best["stale"].map(bool).any()),
            )
            if told
        ),
        "tolerance": _tolerance_used(rows, about),
        "incomparable": _incomparable(best),
        "distrusted": sorted(
            {
                f"{machine_names[row['gpu']]}: {doubt(row)}"
                for row in best[best["valid"].eq(False)].to_dict("records")
            }
        ),
    }


def _incomparable(rows: pd.DataFrame) -> list[str]:
    """At which problems no ratio is made."""
    found: list[Any] = rows[["kernel", "extent", "words", "incomparable"]].to_dict("records")
    return incomparable_notes(found)


def _tolerance_used(rows: pd.DataFrame, about: About) -> str:
    """How much of the tolerance outputs took at most, by whose they are; empty where no row says so."""
    known = rows[rows["tolerance_used"].notna()]
    whose = known["provider"].map(
        lambda name: "ours" if name in about.own else "torch" if name.startswith("torch") else "peers"
    )
    most = known.groupby(whose)["tolerance_used"].max().to_dict()
    shares = [f"{name} {percent(most[name])}" for name in ("torch", "ours", "peers") if name in most]
    return f"Of the tolerance took at most: {', '.join(shares)}." if shares else ""


def _untimed(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows without a time, of providers that somebody asked for, as remarks take them."""
    some = rows.loc[rows["status"] != "ok", ["kernel", "gpu", "provider", "status", "error", "command"]]
    found: list[Any] = some.astype(object).where(some.notna(), None).to_dict("records")
    return [row for row in found if _is_asked_for(row["kernel"], row["provider"], row["command"])]


def _is_asked_for(kernel: str, provider: str, command: str) -> bool:
    """Whether somebody wanted to know of a provider. One that needs a package beyond the pipeline's own is
    measured wherever that happens to be installed, and its failures say something only to who named it."""
    entry = entry_of(kernel)
    declared = {} if entry is None else {one.name: one for one in entry.loaded.kernel.providers}
    if provider not in declared or declared[provider].requires is None:
        return True
    named = re.findall(r"\bprovider=\[?([\w.+,\- ]*)", command)
    return provider in {one.strip() for names in named for one in names.split(",")}


def _rates(rows: pd.DataFrame) -> list[str]:
    """Which rates people compare of the rows."""
    return [name for name in RATES if name in set(rows["headline"])]


LINE_COLUMNS = [
    *(
        "gpu",
        "rank",
        "words",
        "extent",
        "label",
        "provider",
        "median_us",
        "stale",
        "rel_ci",
        "valid",
        "throttle",
        "headline",
    ),
    *(*RATES, "ceiling_fraction", "bound", "speedup", "tied", "doubt", "incomparable"),
]
"""What a line shows: a frame's other columns would take most of the time."""


def _packed(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Lines as data that a script writes out, with what they share once: of a row the places of its problem,
    words, GPU and provider, then the text of its other cells."""
    shared: dict[str, dict[tuple[Any, ...] | str, int]] = {
        name: {} for name in ("problems", "words", "gpus", "providers")
    }
    rows = []
    for line in lines:
        of_line = (
            (line["rank"], line["extent"]),
            line["words"],
            (line["gpu"], line["machine"]),
            (line["provider"], line["style"]),
        )
        places = [
            known.setdefault(one, len(known)) for known, one in zip(shared.values(), of_line, strict=True)
        ]
        label = line["label"] + " (baseline)" * line["baseline"]
        us = line["us"] + "!" * line["distrusted"]
        rows.append([*places, label, us, line["error"], *line["rates"], line["percent"], line["speedup"]])
    return {**{name: list(known) for name, known in shared.items()}, "rows": rows}


def _with_gaps(
    lines: Sequence[Mapping[str, Any]], rows: pd.DataFrame, names: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Lines of a kernel's problems, and at each problem one for every GPU with ``rows`` of the kernel and no
    line there: it has no time, or was not measured."""
    gpus = [slug for slug in names if slug in set(rows["gpu"]) and not slug.startswith("cpu-")]
    tried = set(rows[["rank", "gpu"]].drop_duplicates().itertuples(index=False, name=None))
    place = {slug: i for i, slug in enumerate(names)}
    found = []
    for _, at_problem in itertools.groupby(lines, key=lambda line: line["rank"]):
        here = list(at_problem)
        for slug in gpus:
            if slug not in {line["gpu"] for line in here}:
                label = "no time" if (here[0]["rank"], slug) in tried else GAP
                empty = dict.fromkeys(("provider", "style", "us", "error", "percent", "speedup"), "")
                flags = dict.fromkeys(("baseline", "distrusted", "compute", "bar"), 0)
                rates = [""] * len(here[0]["rates"])
                of = {"gpu": slug, "machine": names[slug], "label": label, "rates": rates}
                here.append({**here[0], **empty, **flags, **of})
        found += sorted(here, key=lambda line: place[line["gpu"]])
    return found


def _lines(
    rows: pd.DataFrame,
    names: Mapping[str, str],
    about: About,
    styles: Mapping[str, Style],
    rates: Sequence[str],
) -> list[dict[str, Any]]:
    """Rows as text, of a problem the machines in the order of ``names``."""
    place = {slug: i for i, slug in enumerate(names)}
    lines = []
    for row in sorted(
        rows[LINE_COLUMNS].to_dict("records"), key=lambda row: (row["rank"], place[row["gpu"]])
    ):
        fraction = row["ceiling_fraction"]
        lines.append(
            {
                "gpu": row["gpu"],
                "provider": row["provider"],
                "rank": row["rank"],
                "machine": names[row["gpu"]],
                "words": row["words"],
                "extent": row["extent"],
                "label": row["label"],
                "style": styles[row["provider"]].name,
                "baseline": row["provider"] == about.baseline,
                "us": microseconds(row["median_us"], is_bound(row))
                + OLD * bool(row["stale"])
                + INCOMPARABLE * isinstance(row["incomparable"], str),
                "error": f"{100 * row['rel_ci']:.1f} %",
                "distrusted": is_distrusted(row),
                "rates": [number(row[name]) if row["headline"] == name else "" for name in rates],
                "percent": percent(fraction),
                "compute": row["bound"] == "compute",
                "bar": 0 if pd.isna(fraction) else round(min(100 * fraction, 100), 1),
                "speedup": ratio_cell(row),
            }
        )
    return lines
