"""The report's pages: what they say, worked out once and written as Markdown and as HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment as Jinja
from jinja2 import FileSystemLoader, StrictUndefined
from kernels.point import DTYPE_NAMES
from markupsafe import Markup, escape

from pipeline.machine.device import Environment
from pipeline.reporting.field import Meeting, scores
from pipeline.reporting.plots import Style, inline
from pipeline.reporting.table import TIE, TIE_NOTE, number, percent, remarks, speedup
from pipeline.reporting.why import sections
from pipeline.store.evidence import Evidence
from pipeline.store.results import BY_SIZE, Results, best_providers, label

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class About:
    """What a report must know of a kernel that its measurements don't tell."""

    kernel: str
    summary: str
    size_means: str
    baseline: str
    own: frozenset[str]
    """The providers written in this repository, as against those that torch brings."""


@dataclass(frozen=True)
class Content:
    """All that a report is made of. ``rows`` are the measurements, ``best`` each provider's best
    configuration with its speedup, ``field`` the shapes at which ours met others, ``plots`` and ``rooflines``
    the SVG of each kernel that was timed."""

    results: Results
    rows: pd.DataFrame
    best: pd.DataFrame
    field: Sequence[Meeting]
    about: Mapping[str, About]
    metrics: Mapping[str, Any]
    plots: Mapping[str, str]
    rooflines: Mapping[str, str]
    evidence: Evidence
    styles: Mapping[str, Style]
    unreadable: Sequence[str]


def machines(results: Results) -> dict[str, str]:
    """The name of every machine that left results, by slug: GPUs first, then CPUs."""
    slugs = {*results.gpus, *results.environments, *results.ceilings}
    ordered = sorted(slugs, key=lambda slug: (slug.startswith("cpu-"), slug))
    known = results.environments
    return {slug: _name(known[slug]) if slug in known else slug for slug in ordered}


def markdown(content: Content) -> str:
    """The report as Markdown; its plots are files beside it."""
    return _jinja().get_template("report.md.j2").render(_view(content))


def html(content: Content) -> str:
    """The report as one HTML file that needs nothing else."""
    view = _view(content)
    for kernel in view["kernels"]:
        svg = content.plots.get(kernel["name"])
        where = ", ".join(view["machines"].values())
        description = escape(f"{kernel['name']}: GB/s against {kernel['size_means']} on {where}")
        kernel["plot"] = svg and Markup(inline(svg, content.styles, description))
        svg = content.rooflines.get(kernel["name"])
        description = escape(f"{kernel['name']}: TFLOP/s against flops a byte on {where}")
        kernel["roofline"] = svg and Markup(inline(svg, content.styles, description))
    return _jinja().get_template("report.html.j2").render(view)


def field_markdown(content: Content) -> str:
    """The page "against the field" as Markdown."""
    return _jinja().get_template("field.md.j2").render(_field_view(content))


def field_html(content: Content) -> str:
    """The page "against the field" as an HTML file that needs nothing else."""
    return _jinja().get_template("field.html.j2").render(_field_view(content))


def _jinja() -> Jinja:
    jinja = Jinja(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=lambda name: bool(name and name.endswith(".html.j2")),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters["code"] = lambda text: Markup(re.sub("``(.+?)``", r"<code>\1</code>", str(escape(text))))
    jinja.filters["cell"] = lambda text: str(text).replace("|", "\\|")
    return jinja


def _view(content: Content) -> dict[str, Any]:
    """What both templates show, as text and numbers."""
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
                parts.append(_field_part(kernel, slug, machine, some))
    return {"parts": parts, "styles": content.styles}


def _field_part(kernel: str, slug: str, machine: str, some: Sequence[Meeting]) -> dict[str, Any]:
    """One kernel on one machine."""
    shapes = {meeting: "x".join(map(str, meeting.shape)) for meeting in some}
    unfinished = [
        f"{meeting.dtype} {shapes[meeting]} ({', '.join(meeting.unasked)})"
        for meeting in some
        if meeting.unasked
    ]
    some = [meeting for meeting in some if not meeting.unasked]
    against = scores(some)
    return {
        "id": f"field-{kernel}-{slug}",
        "kernel": kernel,
        "machine": machine,
        "rivals": list(against),
        "means": [speedup(score.mean) for score in against.values()],
        "worst": [speedup(score.worst) for score in against.values()],
        "won": [f"{score.won} of {score.shapes}" for score in against.values()],
        "unfinished": unfinished,
        "losses": [
            f"{meeting.dtype} {shapes[meeting]} ({', '.join(meeting.lost)})"
            for meeting in some
            if meeting.lost
        ],
        "lines": [
            {
                "dtype": meeting.dtype,
                "shape": shapes[meeting],
                "ours": meeting.ours,
                "us": number(meeting.us),
                "gbps": number(meeting.gbps),
                "percent": percent(meeting.ceiling_fraction),
                "ratios": [
                    {"text": speedup(meeting.ratios.get(rival)), "lost": rival in meeting.lost}
                    for rival in against
                ],
            }
            for meeting in some
        ],
    }


def _name(environment: Environment) -> str:
    """A device's name without the words that all processors carry."""
    noise = r"\((R|TM|C)\)|@.*|\b(CPU|Processor|\d+-Core)\b"
    plain = re.sub(noise, " ", environment.name, flags=re.IGNORECASE)
    return " ".join(plain.split())


def _overview(content: Content, slugs: list[str]) -> list[dict[str, Any]]:
    """A line a kernel and dtype; for each machine what its own providers gain, and how far they get."""
    lines = []
    for kernel, by_gpu in content.metrics.items():
        for dtype in _dtypes(content.rows[content.rows["kernel"] == kernel]):
            cells = [by_gpu.get(slug, {}).get(dtype, {}) for slug in slugs]
            lines.append(
                {
                    "kernel": kernel,
                    "dtype": dtype,
                    "baseline": content.about[kernel].baseline,
                    "cells": [
                        {
                            "speedup": speedup(cell.get("own_speedup")),
                            "gbps": number(cell.get("gbps")),
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

    memory = [e.memory_mib if e else None for e in environments]
    rows = [
        ("copy ceiling", [f"{number(c.copy_gbps)} GB/s" if c else "" for c in ceilings]),
        *(
            (
                f"matmul ceiling, {dtype}",
                [
                    f"{number(c.matmul_tflops[dtype])} TFLOP/s" if c and dtype in c.matmul_tflops else ""
                    for c in ceilings
                ],
            )
            for dtype in DTYPE_NAMES
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
        old = int((rows["environment"] != environment.digest).sum())
        if old:
            sentences.append(f"{name}: {old} of {len(rows)} rows were measured in an earlier environment.")
        ceilings = content.results.ceilings.get(slug)
        if ceilings is None:
            sentences.append(f"{name}: its ceilings were not measured.")
        elif ceilings.environment != environment.digest:
            sentences.append(f"{name}: its ceilings were measured in an earlier environment.")
    return sentences


def _freshness(rows: pd.DataFrame, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """From which commits each machine's rows are, how many of another source than today's, and when they were
    measured."""
    lines = []
    for slug, name in names.items():
        of_machine = rows[rows["gpu"] == slug]
        for (commit, dirty), group in of_machine.groupby(["commit", "dirty"]):
            days = sorted({str(when)[:10] for when in group["measured_at"]})
            lines.append(
                {
                    "machine": name,
                    "commit": str(commit)[:10],
                    "dirty": bool(dirty),
                    "kernels": ", ".join(sorted(group["kernel"].unique())),
                    "count": len(group),
                    "changed": int(group["changed"].sum()),
                    "days": " to ".join(dict.fromkeys((days[0], days[-1]))),
                }
            )
    return lines


def _dtypes(rows: pd.DataFrame) -> list[str]:
    """The dtypes of the rows in their usual order."""
    return [name for name in DTYPE_NAMES if name in set(rows["dtype"])]


def _kernel(content: Content, name: str, machine_names: Mapping[str, str]) -> dict[str, Any]:
    """One kernel's section."""
    rows = content.rows[content.rows["kernel"] == name]
    best = content.best[content.best["kernel"] == name]
    about = content.about[name]
    winners = best_providers(best)
    order = [slug for slug in machine_names if slug in set(rows["gpu"])]
    tables = []
    for dtype in _dtypes(winners):
        of_dtype = winners[winners["dtype"] == dtype].sort_values(BY_SIZE, na_position="first")
        by_size = of_dtype.groupby("extent", sort=False)
        tables.append(
            {
                "dtype": dtype,
                "groups": [(size, _lines(g, machine_names, about, content.styles)) for size, g in by_size],
            }
        )
    everything = []
    for slug in order:
        of_machine = best[best["gpu"] == slug].sort_values(
            ["dtype", *BY_SIZE, "median_us", "provider"], na_position="first"
        )
        by_point = [group for _, group in of_machine.groupby(["dtype", "extent"], sort=False)]
        blocks = [_lines(group, machine_names, about, content.styles) for group in by_point]
        everything.append((machine_names[slug], blocks))
    invalid = best[best["valid"].eq(False)]
    return {
        "name": name,
        "summary": about.summary,
        "size_means": about.size_means,
        "baseline": about.baseline,
        "plot": name in content.plots,
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
        "ties": TIE_NOTE if best["tied"].any() else None,
        "distrusted": sorted(
            {
                f"{machine_names[row['gpu']]}: {row['invalid_reason'] or 'no reason was recorded'}"
                for row in invalid.to_dict("records")
            }
        ),
    }


def _lines(
    rows: pd.DataFrame, names: Mapping[str, str], about: About, styles: Mapping[str, Style]
) -> list[dict[str, Any]]:
    """Rows as text, the machines in the order of ``names``."""
    place = {slug: i for i, slug in enumerate(names)}
    lines = []
    for row in sorted(rows.to_dict("records"), key=lambda row: place[row["gpu"]]):
        fraction = row["ceiling_fraction"]
        lines.append(
            {
                "machine": names[row["gpu"]],
                "dtype": row["dtype"],
                "size": row["extent"],
                "label": label(row),
                "style": styles[row["provider"]].name,
                "baseline": row["provider"] == about.baseline,
                "us": number(row["median_us"]),
                "error": f"{100 * row['rel_ci']:.1f} %",
                "distrusted": row["valid"] is False,
                "gbps": number(row["gbps"]),
                "percent": percent(fraction),
                "compute": row["bound"] == "compute",
                "bar": 0 if pd.isna(fraction) else round(min(100 * fraction, 100), 1),
                "speedup": speedup(row["speedup"]) + TIE * row["tied"],
            }
        )
    return lines
