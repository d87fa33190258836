"""The report's page, from what was worked out."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from pipeline.reporting import answers, gpus, kernel_section
from pipeline.reporting.best import distrust_notes
from pipeline.reporting.charts import inline
from pipeline.reporting.content import Content
from pipeline.reporting.document import Figure, Page, Section, Text
from pipeline.reporting.field_section import field_section, history_section, losses_section
from pipeline.reporting.numbers import GAP, RATES, number, percent, speedup
from pipeline.reporting.origin_section import machines_section, origin_section
from pipeline.reporting.overview import Summary
from pipeline.reporting.overview_plot import STYLES
from pipeline.reporting.tables import TextTable
from pipeline.store.finals import ONE_ROUND

OVERVIEW_NOTE = (
    "Our fastest provider beside the kernel's baseline, and its share of the measured ceiling, at the "
    "problems that are named: those of the kernel's first workload that all GPUs have, by finals (§) where "
    "the machine had any, else by the sweeps. Of several problems it is the geometric mean. `not "
    "measured`: not at these problems. `one round`: of finals that decide nothing."
)

GPUS_NOTE = (
    "The fastest configuration of either GPU, at the problems that both have measured, by providers that "
    "ran the same source on both: by finals where both had some of the kernel, else by sweeps. Each "
    "kernel's section has them one by one. Each line is the geometric mean over the problems with the same "
    "bound; a call under 10 us on either GPU is bound by its launch. Below 1 in `b's time / a's`, b is the "
    "faster; `by ceilings` is what that ratio would be if both reached the same share of their ceilings. "
    "They were not measured together: there is no verdict."
)


def page(content: Content, overview_svg: str) -> Page:
    """The page; ``overview_svg`` is the overview's plot, empty without one."""
    kernels, machines = list(content.about), content.machines
    if not kernels:
        text = "Nothing was measured yet. `dvc repro` measures this machine."
        return Page("Kernel timings", [Text(text, has_code=True), *_unreadable(content)], [], {})
    rows = content.rows
    timed = rows[rows["status"] == "ok"]
    text = (
        f"{len(rows)} points of {len(kernels)} kernel{'s' * (len(kernels) > 1)} on {len(machines)} "
        f"machine{'s' * (len(machines) > 1)}; {len(timed)} were timed, each after its output was verified."
    )
    doubts = answers.doubts(rows, content.loaded.finals)
    sections = [answers.section(content, doubts)]
    sections += [losses_section(content)] if content.field else []
    sections += [overview_section(content, overview_svg)] if content.side_by_side else []
    sections += gpus_sections(content)
    sections += [kernel_section.section(content, kernel) for kernel in kernels]
    sections += [field_section(content)] if content.field else []
    sections += [history_section(content)] if content.loaded.every_final else []
    sections.append(machines_section(content))
    sections += [Section(answers.DOUBTS, [answers.table(doubts, machines)])] if doubts else []
    sections.append(origin_section(content))
    of_timed = set(timed["provider"])
    choices = {
        "kernel": {name: name for name in kernels},
        "gpu": dict(machines),
        "words": {one: one for one in sorted(set(timed["words"]) - {""})},
        "provider": {one: one for one in content.styles if one in of_timed},
    }
    return Page("Kernel timings", [Text(text), *_unreadable(content)], sections, choices)


def page_styles(content: Content) -> dict[str, tuple[str, str]]:
    """The colours of a page on light and dark, by name."""
    return {one.name: (one.light, one.dark) for one in (*content.styles.values(), *STYLES)}


def _unreadable(content: Content) -> list[Text]:
    return [Text(sentence, "alarm") for sentence in content.unreadable]


def overview_section(content: Content, svg: str) -> Section:
    """What our fastest gains over the baseline, and how far it gets; the plot and a table."""
    where = ", ".join(content.machines.values())
    colours = {one.light: one.name for one in STYLES}
    title = (
        "Our fastest beside its baseline, and its share of the ceiling, a line a kernel and a mark a machine"
    )
    drawn = Markup(inline(svg, colours, escape(f"overview of {where}")))
    notes = distrust_notes(
        (why, f"{one.kernel} {one.words}".strip() + f" on {content.machines[one.gpu]}")
        for one in content.side_by_side
        for why in one.doubts
    )
    figure: list[Any] = [Figure(title, "overview.svg", drawn)] if svg else []
    blocks = [Text(OVERVIEW_NOTE, "note", has_code=True), *figure, _overview_table(content)]
    return Section("Overview", [*blocks, *(Text(note, "alarm") for note in notes)])


def _overview_table(content: Content) -> TextTable:
    """A line a kernel, its problems' words and a machine. What met the baseline nowhere has none."""
    known = {(one.kernel, one.words, one.gpu): one for one in content.side_by_side}
    timed = content.rows[content.rows["status"] == "ok"].sort_values(["kernel", "rank"])
    here = [slug for slug in content.machines if any(one.gpu == slug for one in content.side_by_side)]
    rows, about = [], []
    for kernel, words in timed[["kernel", "words"]].drop_duplicates().itertuples(index=False):
        found = [known.get((kernel, words, slug)) for slug in here]
        if any(found):
            for slug, one in zip(here, found, strict=True):
                baseline = content.about[kernel].baseline
                rows.append([kernel, words, content.machines[slug], *_overview_cells(one, baseline)])
                about.append({"gpu": slug, "words": words})
    columns = ("kernel", "dtype", "machine", "ours", "of ceiling", "rate", "at")
    return TextTable("Our fastest beside the baseline", columns, rows, columns[4:6], about=about)


def _overview_cells(one: Summary | None, baseline: str) -> list[str]:
    if one is None:
        return [GAP, "", "", ""]
    return [
        f"{speedup(one.speedup)}{'!' * bool(one.doubts)} x {baseline}",
        percent(one.ceiling_fraction),
        f"{number(one.rate)} {RATES[one.headline]}",
        one.where + " §" * one.by_finals + f" ({ONE_ROUND})" * one.is_once,
    ]


def gpus_sections(content: Content) -> list[Section]:
    """GPU against GPU, where several have rows."""
    groups = gpus.groups(content.common_problems)
    alone = gpus.alone(content.common_problems, content.rows, content.machines)
    if not groups and not alone:
        return []
    blocks: list[Any] = [Text(alone)]
    if groups:
        blocks = [Text(GPUS_NOTE, "note", has_code=True), gpus.group_table(groups, content.machines)]
    notes = [Text(one, "note") for one in gpus.left_out(content.other_sources, content.machines)]
    return [Section(answers.GPUS, [*blocks, *notes])]
