"""The report's pages: what they say, worked out once and written as Markdown and as HTML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from jinja2 import Environment as Jinja
from jinja2 import FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pipeline.points import notation
from pipeline.points.frozen import digest
from pipeline.points.limits import visible
from pipeline.reporting.drawings import Drawing
from pipeline.reporting.field import HeadToHead, scores
from pipeline.reporting.frames import best_providers, entry_of
from pipeline.reporting.history import Part
from pipeline.reporting.numbers import RATES, number, percent, speedup
from pipeline.reporting.plots import Style, inline
from pipeline.reporting.table import TIE, TIE_NOTE, remarks
from pipeline.reporting.why import sections
from pipeline.store.environment import Environment
from pipeline.store.evidence import Evidence
from pipeline.store.finals import Final
from pipeline.store.results import Results, machines_first_gpus
from pipeline.store.turns import Accuracy

TEMPLATES = Path(__file__).with_name("templates")

WORDLESS = "all"
"""What metrics call the problems of a kernel that has no words among its dimensions."""

STALE = ("source", "instrument", "environment")
"""The parts of a row's key that can be old: what its provider runs, the code that times and verifies, and the
machine's environment."""

OLD = "†"
OLD_NOTE = (
    f"{OLD} old: measured by another source or instrument than those of this commit, "
    "or in an earlier environment."
)


@dataclass(frozen=True)
class About:
    """What a report must know of a kernel that its measurements don't tell.

    ``own`` are the providers written in this repository, as against those that torch and peers bring;
    ``rivals`` those that they are compared with on the page "against the field"."""

    kernel: str
    summary: str
    baseline: str
    own: frozenset[str]
    rivals: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Plot:
    """A drawing and its SVG."""

    drawing: Drawing
    svg: str


@dataclass(frozen=True)
class Content:
    """All that a report is made of. ``rows`` are the measurements, with what is ``stale`` about each,
    ``best`` each provider's best configuration with its speedup, ``field`` the problems at which ours met
    others, ``finals`` the newest of each problem, ``history`` those of every run, ``plots`` and ``rooflines``
    the SVGs of each kernel that was timed. ``otherwise`` counts the measurements that were left out, since
    they were timed in other ways or anew."""

    results: Results
    rows: pd.DataFrame
    best: pd.DataFrame
    field: Sequence[HeadToHead]
    finals: Sequence[Final]
    history: Sequence[Part]
    about: Mapping[str, About]
    metrics: Mapping[str, Any]
    plots: Mapping[str, Sequence[Plot]]
    rooflines: Mapping[str, str]
    evidence: Evidence
    styles: Mapping[str, Style]
    unreadable: Sequence[str]
    otherwise: int

    @cached_property
    def view(self) -> dict[str, Any]:
        """What both templates of the report show, as text and numbers."""
        return _view(self)


def machines(results: Results) -> dict[str, str]:
    """The name of every machine that left results, by slug: GPUs first, then CPUs."""
    known = results.environments
    slugs = machines_first_gpus([*results.gpus, *known, *results.ceilings])
    return {slug: _name(known[slug]) if slug in known else slug for slug in slugs}


def markdown(content: Content) -> str:
    """The report as Markdown; its plots are files beside it."""
    return _markdown().get_template("report.md.j2").render(content.view)


def html(content: Content) -> str:
    """The report as one HTML file that needs nothing else."""
    where = ", ".join(content.view["machines"].values())
    drawn = []
    for kernel in content.view["kernels"]:
        plots = []
        for shown, plot in zip(kernel["plots"], content.plots.get(kernel["name"], ()), strict=True):
            description = escape(f"{shown['title']} on {where}")
            plots.append(shown | {"svg": Markup(inline(plot.svg, content.styles, description))})
        svg = content.rooflines.get(kernel["name"])
        description = escape(f"{kernel['name']}: TFLOP/s against flops a byte on {where}")
        roof = svg and Markup(inline(svg, content.styles, description))
        drawn.append(kernel | {"plots": plots, "roofline": roof})
    return _html().get_template("report.html.j2").render(content.view | {"kernels": drawn})


def field_markdown(content: Content) -> str:
    """The page "against the field" as Markdown."""
    return _markdown().get_template("field.md.j2").render(_field_view(content))


def field_html(content: Content) -> str:
    """The page "against the field" as an HTML file that needs nothing else."""
    return _html().get_template("field.html.j2").render(_field_view(content))


def history_markdown(content: Content) -> str:
    """The page of finals over commits as Markdown."""
    return _markdown().get_template("history.md.j2").render(_history_view(content))


def history_html(content: Content) -> str:
    """The same as an HTML file that needs nothing else."""
    return _html().get_template("history.html.j2").render(_history_view(content))


def _history_view(content: Content) -> dict[str, Any]:
    names = machines(content.results)
    parts = [
        {
            "kernel": part.kernel,
            "machine": names.get(part.gpu, part.gpu),
            "runs": part.runs,
            "lines": part.lines,
        }
        for part in content.history
    ]
    return {"parts": parts, "styles": content.styles}


def plain_markdown(value: object) -> str:
    """A value as Markdown that says no more than its text: no tag, no link, no code, no further cell. What is
    ``Markup`` is Markdown already."""
    if isinstance(value, Markup):
        return value
    text = re.sub(r"[\\`\[\]|]", r"\\\g<0>", visible(str(value)))
    return Markup(re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;"))


def _markdown() -> Jinja:
    jinja = _jinja(finalize=plain_markdown)
    jinja.filters["cells"] = lambda values: Markup(" | ".join(map(plain_markdown, values)))
    jinja.filters["code"] = lambda text: Markup(text.replace("``", "`"))
    return jinja


def _html() -> Jinja:
    jinja = _jinja(autoescape=True)
    jinja.filters["code"] = lambda text: Markup(re.sub("``(.+?)``", r"<code>\1</code>", str(escape(text))))
    return jinja


def _jinja(**options: Any) -> Jinja:
    return Jinja(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


def _view(content: Content) -> dict[str, Any]:
    names = machines(content.results)
    counts = content.rows["status"].value_counts()
    return {
        "machines": names,
        "counts": {"points": len(content.rows), "timed": int(counts.get("ok", 0))},
        "overview": _overview(content, list(names)),
        "properties": _properties(content.results, list(names)),
        "elsewhere": _elsewhere(content, names),
        "freshness": _freshness(content.rows, names),
        "kernels": [_kernel(content, name, names) for name in content.results.kernels],
        "unreadable": content.unreadable,
        "otherwise": content.otherwise,
        "carried": _carried(content.rows, names),
        "styles": content.styles,
        "field": bool(content.field),
    }


def _field_view(content: Content) -> dict[str, Any]:
    """What both templates of the page "against the field" show: a part a kernel and machine."""
    names = machines(content.results)
    parts = []
    for kernel in content.results.kernels:
        for slug, machine in names.items():
            some = [m for m in content.field if (m.kernel, m.gpu) == (kernel, slug)]
            if some:
                held = [r for r in content.finals if (r.point.kernel, r.origin.gpu) == (kernel, slug)]
                part = _field_part(kernel, slug, machine, some, content.about[kernel].rivals)
                parts.append(part | {"accuracy": _accuracy(held), "sustained": _sustained(held)})
    return {"parts": parts, "styles": content.styles}


def _field_part(
    kernel: str, slug: str, machine: str, some: Sequence[HeadToHead], rivals: Sequence[str]
) -> dict[str, Any]:
    """One kernel on one machine."""
    unfinished = [
        f"{one.words} {one.extent} ({', '.join(one.unasked)})".lstrip() for one in some if one.unasked
    ]
    some = [versus for versus in some if not versus.unasked]
    against = scores(some, rivals)
    origins = [versus.origin for versus in some if versus.origin is not None]
    rates = list(dict.fromkeys(versus.headline for versus in some))
    return {
        "id": f"field-{kernel}-{slug}",
        "kernel": kernel,
        "machine": machine,
        "rivals": list(against),
        "finals": sorted({f"{one.commit[:10]}{', edited' * one.dirty}" for one in origins}),
        "rates": [RATES[name] for name in rates],
        "means": [speedup(score.mean) for score in against.values()],
        "worst": [speedup(score.worst) for score in against.values()],
        "won": [f"{score.won} of {score.problems}" for score in against.values()],
        "unfinished": unfinished,
        "losses": [f"{one.words} {one.extent} ({', '.join(one.lost)})".lstrip() for one in some if one.lost],
        "lines": [
            {
                "words": versus.words,
                "extent": versus.extent,
                "ours": versus.ours,
                "us": number(versus.us),
                "rates": [number(versus.rate) if versus.headline == name else "" for name in rates],
                "percent": percent(versus.ceiling_fraction),
                "oracle": "" if versus.oracle is None else f"{versus.oracle[0]}, {number(versus.oracle[1])}",
                "ratios": [
                    {"text": _ratio(versus, rival), "lost": rival in versus.lost} for rival in against
                ],
            }
            for versus in some
        ],
    }


def _accuracy(held: Sequence[Final]) -> list[list[str]]:
    """How right each provider's finalists are, of each words of a problem: the median and the largest
    distance over their problems, and at how many of these a second call gives other bits."""
    groups: dict[tuple[str, str], list[Accuracy]] = {}
    for row in held:
        if row.accuracy is not None:
            groups.setdefault((notation.words(row.point), row.point.provider), []).append(row.accuracy)
    return [
        [
            words,
            provider,
            number(median(one.ulp_median for one in some), 2),
            number(max(one.ulp_worst for one in some)),
            f"{sum(one.repeats for one in some)} of {len(some)}",
        ]
        for (words, provider), some in sorted(groups.items())
    ]


def _sustained(held: Sequence[Final]) -> list[list[str]]:
    """Times after seconds of the same work, beside those after a rest."""
    burst = {(row.key, row.point): row for row in held if row.power == "burst"}
    lines = []
    for row in held:
        rested = burst.get((row.key, row.point))
        if row.power == "burst" or rested is None:
            continue
        beside = row.against
        lines.append(
            [
                notation.words(row.point),
                notation.extent(row.point),
                notation.label(row.point),
                number(rested.median_us),
                number(row.median_us),
                f"{number(getattr(row.rate, row.headline))} {RATES[row.headline]}",
                percent(row.rate.ceiling_fraction),
                "" if row.sm_clock_mhz is None else f"{row.sm_clock_mhz} MHz",
                number(row.joules),
                "" if beside is None else f"{speedup(beside.ratio)} {beside.verdict}",
            ]
        )
    return lines


def _ratio(versus: HeadToHead, rival: str) -> str:
    """A ratio; of finals with half of its interval, and where nothing is decided with a question mark."""
    one = versus.finals.get(rival)
    text = speedup(versus.ratios.get(rival))
    if one is None or one.high is None:
        return text
    mark = {"same": " =", "undecided": " ?"}.get(one.verdict, "")
    return f"{text} ± {number(50 * (one.high - one.low) / one.ratio, 2)} %{mark}"


def _name(environment: Environment) -> str:
    """A device's name without the words that all processors carry."""
    noise = r"\((R|TM|C)\)|@.*|\b(CPU|Processor|\d+-Core)\b"
    plain = re.sub(noise, " ", environment.name, flags=re.IGNORECASE)
    return " ".join(plain.split())


def _overview(content: Content, slugs: list[str]) -> list[dict[str, Any]]:
    """A line a kernel and its problems' words; for each machine what its own providers gain, and how far they
    get."""
    lines = []
    for kernel, by_gpu in content.metrics.items():
        for words in _words(content.rows[content.rows["kernel"] == kernel]):
            cells = [by_gpu.get(slug, {}).get(words or WORDLESS, {}) for slug in slugs]
            lines.append(
                {
                    "kernel": kernel,
                    "words": words,
                    "baseline": content.about[kernel].baseline,
                    "cells": [
                        {
                            "speedup": speedup(cell.get("own_speedup")),
                            "rate": " ".join(
                                f"{number(cell[name])} {unit}" for name, unit in RATES.items() if name in cell
                            ),
                            "percent": percent(cell.get("ceiling_fraction")),
                        }
                        for cell in cells
                    ],
                }
            )
    return lines


def _properties(results: Results, slugs: list[str]) -> list[tuple[str, list[str]]]:
    """The machines side by side: a property, and its value on each; those that none has are left out."""
    environments = [results.environments.get(slug) for slug in slugs]
    ceilings = [results.ceilings.get(slug) for slug in slugs]

    def each(field: str, form: str = "{}") -> list[str]:
        values = [getattr(environment, field, None) for environment in environments]
        return ["" if value is None else form.format(value) for value in values]

    arithmetics = list(dict.fromkeys(name for c in ceilings if c for name in c.matmul_tflops))
    memory = [e.memory_mib if e else None for e in environments]
    rows = [
        ("copy ceiling", [f"{number(c.copy_gbps)} GB/s" if c else "" for c in ceilings]),
        *(
            (
                f"matmul ceiling, {name}",
                [
                    f"{number(c.matmul_tflops[name])} TFLOP/s" if c and name in c.matmul_tflops else ""
                    for c in ceilings
                ],
            )
            for name in arithmetics
        ),
        ("memory", ["" if mib is None else f"{mib / 1024:.0f} GiB" for mib in memory]),
        ("compute capability", each("compute_capability")),
        ("driver", each("driver")),
        ("CUDA of torch", each("cuda")),
        ("nvcc", each("nvcc")),
        ("torch", each("torch")),
        ("triton", each("triton")),
        ("Python", each("python")),
        ("C++ compiler", each("cxx")),
        ("processor", each("cpu")),
        ("threads", each("cpu_threads")),
        ("platform", each("platform")),
    ]
    return [(name, values) for name, values in rows if any(values)]


def _elsewhere(content: Content, names: Mapping[str, str]) -> list[str]:
    """Sentences on results that don't belong to the environment their machine has now."""
    sentences = []
    for slug, name in names.items():
        environment = content.results.environments.get(slug)
        rows = content.rows[content.rows["gpu"] == slug]
        if environment is None:
            sentences.append(f"{name}: its environment was not recorded.")
            continue
        felt = {
            (kernel, provider): felt_by(kernel, provider, environment)
            for kernel, provider in set(zip(rows["kernel"], rows["provider"], strict=True))
        }
        old = sum(
            felt[row["kernel"], row["provider"]] not in (None, row["environment"])
            for row in rows[["kernel", "provider", "environment"]].to_dict("records")
        )
        if old:
            sentences.append(f"{name}: {old} of {len(rows)} rows were measured in an earlier environment.")
        ceilings = content.results.ceilings.get(slug)
        if ceilings is None:
            sentences.append(f"{name}: its ceilings were not measured.")
        elif ceilings.environment != environment.of_device:
            sentences.append(f"{name}: its ceilings were measured in an earlier environment.")
    return sentences


def felt_by(kernel: str, provider: str, environment: Environment) -> str | None:
    """The digest of an environment as a provider feels it; None where that can't be told: of a provider that
    is not there, and of a peer, whose package only the machine itself has."""
    entry = entry_of(kernel)
    known = {} if entry is None else {one.name: one for one in entry.loaded.kernel.providers}
    if provider not in known or known[provider].package:
        return None
    return digest(environment.felt_by(known[provider]))


def _freshness(rows: pd.DataFrame, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """From which commits each machine's rows are, how many of them are stale and of what, and when they were
    measured."""
    lines = []
    for slug, name in names.items():
        of_machine = rows[rows["gpu"] == slug]
        for (commit, dirty), group in of_machine.groupby(["commit", "dirty"]):
            days = sorted({str(when)[:10] for when in group["measured_at"]})
            stale = Counter(part for parts in group["stale"] for part in parts)
            lines.append(
                {
                    "machine": name,
                    "commit": str(commit)[:10],
                    "dirty": bool(dirty),
                    "kernels": ", ".join(sorted(group["kernel"].unique())),
                    "count": len(group),
                    "stale": sum(map(bool, group["stale"])),
                    "of": ", ".join(f"{part} {stale[part]}" for part in STALE if stale[part]),
                    "carried": sum(map(bool, group["carried"])),
                    "days": " to ".join(dict.fromkeys((days[0], days[-1]))),
                }
            )
    return lines


def _carried(rows: pd.DataFrame, names: Mapping[str, str]) -> list[str]:
    """Sentences on rows that were kept when the code that times and verifies changed."""
    sentences = []
    for slug, name in names.items():
        kept = Counter(
            (one["commit"], one["points"], one["ratio"])
            for carried in rows.loc[rows["gpu"] == slug, "carried"]
            for one in carried
        )
        for (commit, points, ratio), count in sorted(kept.items()):
            were = "rows of commit {} were" if count > 1 else "row of commit {} was"
            sentences.append(
                f"{name}: {count} {were.format(commit[:10])} kept when the instrument changed: at {points} "
                f"points timed by both, the new times are {ratio:.3f} of the old in geometric mean."
            )
    return sentences


def _words(rows: pd.DataFrame) -> list[str]:
    """The words of the rows' problems in their order."""
    return list(dict.fromkeys(rows.sort_values("rank")["words"]))


def _kernel(content: Content, name: str, machine_names: Mapping[str, str]) -> dict[str, Any]:
    """One kernel's section."""
    rows = content.rows[content.rows["kernel"] == name]
    best = content.best[content.best["kernel"] == name]
    about = content.about[name]
    winners = best_providers(best)
    order = [slug for slug in machine_names if slug in set(rows["gpu"])]
    tables = []
    for words in _words(winners):
        of_words = winners[winners["words"] == words].sort_values("rank")
        rates = _rates(of_words)
        groups = [
            (extent, _lines(group, machine_names, about, content.styles, rates))
            for extent, group in of_words.groupby("extent", sort=False)
        ]
        tables.append({"words": words, "rates": [RATES[one] for one in rates], "groups": groups})
    rates = _rates(best)
    everything = []
    for slug in order:
        of_machine = best[best["gpu"] == slug].sort_values(["rank", "median_us", "provider"])
        by_problem = [group for _, group in of_machine.groupby("rank", sort=False)]
        blocks = [_lines(group, machine_names, about, content.styles, rates) for group in by_problem]
        everything.append((machine_names[slug], blocks))
    invalid = best[best["valid"].eq(False)]
    return {
        "name": name,
        "summary": about.summary,
        "baseline": about.baseline,
        "rates": [RATES[one] for one in rates],
        "plots": [
            {
                "file": f"plots/{drawing.name}.svg",
                "title": f"{name}, {drawing.workload}: {RATES[drawing.headline]} against {drawing.x_label}",
                "workload": drawing.workload,
                "panels": drawing.lines["gpu"].nunique(),
                "svg": None,
            }
            for drawing in (plot.drawing for plot in content.plots.get(name, ()))
        ],
        "roofline": name in content.rooflines,
        "why": sections(name, machine_names, content.evidence, content.results.measurements),
        "panels": best["gpu"].nunique(),
        "tables": tables,
        "everything": [(machine, blocks) for machine, blocks in everything if blocks],
        "untimed": [
            (machine_names[slug], [str(remark) for remark in remarks(rows[rows["gpu"] == slug])])
            for slug in order
            if not rows[rows["gpu"] == slug]["status"].eq("ok").all()
        ],
        "ties": " ".join(
            note
            for note, told in ((TIE_NOTE, best["tied"].any()), (OLD_NOTE, best["stale"].map(bool).any()))
            if told
        ),
        "distrusted": sorted(
            {
                f"{machine_names[row['gpu']]}: {row['invalid_reason'] or 'no reason was recorded'}"
                for row in invalid.to_dict("records")
            }
        ),
    }


def _rates(rows: pd.DataFrame) -> list[str]:
    """Which rates people compare of the rows."""
    return [name for name in RATES if name in set(rows["headline"])]


LINE_COLUMNS = [
    *("gpu", "words", "extent", "label", "provider", "median_us", "stale", "rel_ci", "valid", "headline"),
    *(*RATES, "ceiling_fraction", "bound", "speedup", "tied"),
]
"""What a line shows: a frame's other columns would take most of the time."""


def _lines(
    rows: pd.DataFrame,
    names: Mapping[str, str],
    about: About,
    styles: Mapping[str, Style],
    rates: Sequence[str],
) -> list[dict[str, Any]]:
    """Rows as text, the machines in the order of ``names``."""
    place = {slug: i for i, slug in enumerate(names)}
    lines = []
    for row in sorted(rows[LINE_COLUMNS].to_dict("records"), key=lambda row: place[row["gpu"]]):
        fraction = row["ceiling_fraction"]
        lines.append(
            {
                "machine": names[row["gpu"]],
                "words": row["words"],
                "extent": row["extent"],
                "label": row["label"],
                "style": styles[row["provider"]].name,
                "baseline": row["provider"] == about.baseline,
                "us": number(row["median_us"]) + OLD * bool(row["stale"]),
                "error": f"{100 * row['rel_ci']:.1f} %",
                "distrusted": row["valid"] is False,
                "rates": [number(row[name]) if row["headline"] == name else "" for name in rates],
                "percent": percent(fraction),
                "compute": row["bound"] == "compute",
                "bar": 0 if pd.isna(fraction) else round(min(100 * fraction, 100), 1),
                "speedup": speedup(row["speedup"]) + TIE * row["tied"],
            }
        )
    return lines
