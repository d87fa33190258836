"""The report's pages, written as Markdown and as HTML from what its sections say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment as Jinja
from jinja2 import FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pipeline.points.limits import visible
from pipeline.reporting import (
    answers,
    field_section,
    gpus,
    gpus_section,
    kernel_section,
    losses,
    origin_section,
)
from pipeline.reporting.charts import SHAPES
from pipeline.reporting.content import Content
from pipeline.reporting.numbers import RATES, number, percent, speedup
from pipeline.reporting.overview import STYLES
from pipeline.reporting.plots import inline
from pipeline.reporting.summary import Summary
from pipeline.store.finals import ONE_ROUND

TEMPLATES = Path(__file__).with_name("templates")


def texts(content: Content) -> dict[str, str]:
    """Every page by its file's name. Those in HTML need no other file; the plots of those in Markdown are
    files beside them."""
    view = _view(content)
    drawn: dict[str, Any] = {
        "shapes_of_marks": SHAPES.values(),
        "rooflines": _inlined(content, content.rooflines, "TFLOP/s against flops a byte"),
        "ladders": _inlined(content, content.ladders, "every provider at one problem"),
    }
    if content.overview:
        machines = {one.name: one for one in STYLES}
        where = ", ".join(content.machines.values())
        drawn["overview_drawn"] = Markup(inline(content.overview, machines, escape(f"overview of {where}")))
    others = {"field": field_section.view(content), "history": _history_view(content)}
    markdown, html = _markdown(), _html()
    found = {
        "report.md": markdown.get_template("report.md.j2").render(view),
        "report.html": html.get_template("report.html.j2").render(view | drawn),
    }
    for page, shown in others.items():
        found[f"{page}.md"] = markdown.get_template(f"{page}.md.j2").render(shown)
        found[f"{page}.html"] = html.get_template(f"{page}.html.j2").render(shown)
    return found


def _inlined(content: Content, drawings: Mapping[str, str], what: str) -> dict[str, Markup]:
    """Kernels' drawings as parts of a page."""
    where = ", ".join(content.machines.values())
    return {
        kernel: Markup(inline(svg, content.styles, escape(f"{kernel}: {what} on {where}")))
        for kernel, svg in drawings.items()
    }


def _history_view(content: Content) -> dict[str, Any]:
    names = content.machines
    parts = [
        {
            "kernel": part.kernel,
            "machine": names.get(part.gpu, part.gpu),
            "runs": part.runs,
            "lines": part.lines,
        }
        for part in content.history
    ]
    return {"parts": parts, "styles": list(content.styles.values())}


def plain_markdown(value: object) -> str:
    """A value as Markdown that says no more than its text: no tag, no link, no code, no further cell. What is
    ``Markup`` is Markdown already."""
    if isinstance(value, Markup):
        return value
    text = re.sub(r"[\\`\[\]|]", r"\\\g<0>", visible(str(value)))
    # Before "= " or a space it begins no tag.
    return Markup(re.sub(r"<(?!=? )", "&lt;", re.sub(r"&(?=#?\w+;)", "&amp;", text)))


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
    jinja = Jinja(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    jinja.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    return jinja


def _view(content: Content) -> dict[str, Any]:
    names = content.machines
    rows = content.rows
    counts = rows["status"].value_counts()
    timed = rows[rows["status"] == "ok"].sort_values("rank")
    doubted = answers.doubts(rows, content.finals)
    return {
        "machines": names,
        "counts": {"points": len(rows), "timed": int(counts.get("ok", 0))},
        "choices": {
            "words": sorted(set(timed["words"]) - {""}),
            "providers": [one for one in content.styles if one in set(timed["provider"])],
        },
        "answers": answers.answers(content, doubted),
        "doubts": answers.lines(doubted, names),
        "losses": losses.view(content.losses, names),
        "overview": _overview(content, list(names)),
        "overview_doubts": _overview_doubts(content),
        "gpu_groups": gpus_section.overview(gpus.groups(content.common_problems), names),
        "gpus_alone": gpus_section.alone(content.common_problems, rows, names),
        "other_sources": gpus_section.left_out(content.other_sources, names),
        "properties": origin_section.properties(content.results, list(names)),
        "elsewhere": origin_section.elsewhere(content, names),
        "freshness": origin_section.freshness(rows, names),
        "kernels": [kernel_section.section(content, name, names) for name in content.about],
        "unreadable": content.unreadable,
        "otherwise": content.otherwise,
        "styles": [*content.styles.values(), gpus_section.STYLE, *STYLES],
        "field": bool(content.field),
    }


def _overview(content: Content, slugs: list[str]) -> list[dict[str, Any]]:
    """A line a kernel and its problems' words; for each machine what our fastest gains over the baseline, how
    far it gets, and at which problems. What met the baseline nowhere has none."""
    known = {(one.kernel, one.words, one.gpu): one for one in content.side_by_side}
    timed = content.rows[content.rows["status"] == "ok"].sort_values(["kernel", "rank"])
    lines = []
    for kernel, words in timed[["kernel", "words"]].drop_duplicates().itertuples(index=False):
        found = [known.get((kernel, words, slug)) for slug in slugs]
        if not any(found):
            continue
        lines.append(
            {
                "kernel": kernel,
                "words": words,
                "baseline": content.about[kernel].baseline,
                "cells": [None if one is None else _told(one) for one in found],
            }
        )
    return lines


def _overview_doubts(content: Content) -> list[str]:
    """Which of these are not to be trusted, by reason."""
    found: dict[str, list[str]] = {}
    for one in content.side_by_side:
        where = f"{one.kernel} {one.words}".strip() + f" on {content.machines[one.gpu]}"
        for why in one.doubts:
            found.setdefault(why, []).append(where)
    return [f"! Not to be trusted at {', '.join(places)}: {why}." for why, places in found.items()]


def _told(one: Summary) -> dict[str, Any]:
    return {
        "speedup": speedup(one.speedup) + "!" * bool(one.doubts),
        "rate": f"{number(one.rate)} {RATES[one.headline]}",
        "percent": percent(one.ceiling_fraction),
        "where": one.where,
        "finals": " §" * one.by_finals + f" ({ONE_ROUND})" * one.is_once,
    }
