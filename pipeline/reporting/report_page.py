"""The report's page: the order of its sections, and the sections that cover all kernels."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..points.notation import plural
from ..store.finals import ONE_ROUND
from . import answers, gpus, kernel_section
from .cells import distrust_notes
from .content import Content
from .document import Figure, Page, Section, Text
from .field_section import field_section, history_section, losses_section
from .held_out_tables import kernels_table, losses_table
from .loading import STALE
from .numbers import GAP, RATES, number, percent, speedup
from .overview import STYLES, Summary, overview_plot
from .tables import TextTable

OVERVIEW_NOTE = (
    "Our fastest provider beside the kernel's baseline, and its share of the measured ceiling: at the "
    "problems of the kernel's first workload that all GPUs have, from finals (§) if the machine has finals, "
    "else from the sweeps. Several problems are shown by their geometric mean. `not measured`: not at these "
    "problems. `one round`: these finals decide nothing."
)

GPUS_NOTE = (
    "The fastest configuration on either GPU at the problems that both have measured, among providers "
    "with the same source on both: from finals if both have finals of the problem, else from sweeps. Each "
    "kernel's section has the problems one by one. A line is the geometric mean over the problems with "
    "the same bound; a call under 10 us on either GPU is bound by its launch. If `b's time / a's` "
    "is below 1, b is faster. `by ceilings` is this ratio if both reach the same share of their ceilings. "
    "The GPUs were not measured together, so there is no verdict."
)

HELD_OUT_NOTE = (
    "Problems that were drawn at random (`python -m pipeline.heldout`), at which nothing was tuned: the "
    "configuration that callers of `kernel_pipeline.ops` get, beside torch's providers and installed peers. "
    "`decided` problems have a verdict or call torch's provider, and `level or faster` is the share of them "
    "that takes at most 3 % longer than torch. `x baseline` and `x best other` are geometric means of their "
    "time over ours, also of one round. A draw is a date, and stays as its commit gave it."
)

ORIGIN_NOTE = (
    "A stale row was measured from another source than the kernel's here, by another version of the "
    "measuring code, or in an earlier environment."
)

FIELDS = {
    "compute capability": "compute_capability",
    "driver": "driver",
    "CUDA of torch": "cuda",
    "nvcc": "nvcc",
    "torch": "torch",
    "triton": "triton",
    "Python": "python",
    "C++ compiler": "cxx",
    "processor": "cpu",
    "threads": "cpu_threads",
    "platform": "platform",
}
"""The fields of an environment that the page shows, by the name of their line."""


def page(content: Content) -> Page:
    """Return the whole page."""
    kernels, machines = list(content.about), content.machines
    unreadable = [Text(sentence, "alarm") for sentence in content.unreadable]
    if not kernels:
        text = "Nothing was measured yet. `dvc repro` measures this machine."
        return Page("Kernel timings", [Text(text, has_code=True), *unreadable], [], {})
    rows = content.rows
    timed = rows[rows["status"] == "ok"]
    text = (
        f"{len(rows)} points of {plural(len(kernels), 'kernel')} on {plural(len(machines), 'machine')}; "
        f"{len(timed)} were timed, each after its output was verified."
    )
    sections = [answers.section(content)]
    sections += [losses_section(content)] if content.field else []
    sections += [overview_section(content)] if content.side_by_side else []
    sections += gpus_sections(content)
    sections += [kernel_section.section(content, kernel) for kernel in kernels]
    sections += [field_section(content)] if content.field else []
    sections += [held_out_section(content)] if content.held_out else []
    sections += [history_section(content)] if content.loaded.every_final else []
    sections += [machines_section(content), origin_section(content)]
    of_timed = set(timed["provider"])
    choices = {
        "kernel": {name: name for name in kernels},
        "gpu": dict(machines),
        "words": {one: one for one in sorted(set(timed["words"]) - {""})},
        "provider": {one: one for one in content.styles if one in of_timed},
    }
    return Page("Kernel timings", [Text(text), *unreadable], sections, choices)


def page_styles(content: Content) -> dict[str, tuple[str, str]]:
    """Return a page's colours on light and on dark, by name."""
    return {one.name: (one.light, one.dark) for one in (*content.styles.values(), *STYLES)}


def overview_section(content: Content) -> Section:
    """Return the plot and the table of our fastest over the baseline and its share of the ceiling."""
    title = (
        "Our fastest provider over the baseline, and its share of the ceiling, with a mark for each machine"
    )
    notes = distrust_notes(
        (why, f"{one.kernel} {one.words}".strip() + f" on {content.machines[one.gpu]}")
        for one in content.side_by_side
        for why in one.doubts
    )
    figure = Figure(title, "overview.svg", overview_plot(content.side_by_side, content.machines))
    blocks: list[Any] = [Text(OVERVIEW_NOTE, "note", has_code=True), figure, _overview_table(content)]
    return Section("Overview", [*blocks, *(Text(note, "alarm") for note in notes)])


def _overview_table(content: Content) -> TextTable:
    """Return the overview as a table: a line for each kernel, combination of words and machine."""
    known = {(one.kernel, one.words, one.gpu): one for one in content.side_by_side}
    timed = content.rows[content.rows["status"] == "ok"].sort_values(["kernel", "rank"])
    here = [slug for slug in content.machines if any(one.gpu == slug for one in content.side_by_side)]
    rows, about = [], []
    for kernel, words in timed[["kernel", "words"]].drop_duplicates().itertuples(index=False):
        found = [known.get((kernel, words, slug)) for slug in here]
        if any(found):
            baseline = content.about[kernel].baseline
            for slug, one in zip(here, found, strict=True):
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
    """Return the section that compares the GPUs, or no section if only one GPU has rows."""
    groups = gpus.groups(content.common_problems)
    alone = gpus.alone(content.common_problems, content.rows, content.machines)
    if not groups and not alone:
        return []
    blocks: list[Any] = [Text(alone)]
    if groups:
        blocks = [Text(GPUS_NOTE, "note", has_code=True), gpus.group_table(groups, content.machines)]
    notes = [Text(one, "note") for one in gpus.left_out(content.other_sources, content.machines)]
    return [Section(answers.GPUS, [*blocks, *notes])]


def held_out_section(content: Content) -> Section:
    """Return the section on problems that nobody tuned."""
    tables = kernels_table(content.held_out), losses_table(content.held_out)
    return Section("Held-out problems", [Text(HELD_OUT_NOTE, "note", has_code=True), *filter(None, tables)])


def machines_section(content: Content) -> Section:
    """Return the section with the machines side by side, and notes on results of earlier environments."""
    found = content.loaded.results
    environments = [found.environments.get(slug) for slug in content.machines]
    ceilings = [found.ceilings.get(slug) for slug in content.machines]
    rows = [["copy ceiling", *(f"{number(one.copy_gbps)} GB/s" if one else GAP for one in ceilings)]]
    for name in dict.fromkeys(name for one in ceilings if one for name in one.matmul_tflops):
        rates = [number(one.matmul_tflops.get(name)) if one else "" for one in ceilings]
        rows.append([f"matmul ceiling, {name}", *(f"{rate} TFLOP/s" if rate else GAP for rate in rates)])
    rows.append(["memory", *(f"{one.memory_mib / 1024:.0f} GiB" if one else "" for one in environments)])
    for name, field in FIELDS.items():
        values = [getattr(one, field, None) for one in environments]
        rows.append([name, *("" if value is None else str(value) for value in values)])
    known = [row for row in rows if {*row[1:]} - {"", GAP}]
    table = TextTable("The machines side by side", ["", *content.machines.values()], known)
    return Section("Machines", [table, *(Text(sentence, "alarm") for sentence in _elsewhere(content))])


def _elsewhere(content: Content) -> list[str]:
    """Return sentences on rows and ceilings that are missing or of an earlier environment."""
    sentences = []
    for slug, name in content.machines.items():
        environment = content.loaded.results.environments.get(slug)
        if environment is None:
            sentences.append(f"{name}: its environment was not recorded.")
            continue
        rows = content.rows[content.rows["gpu"] == slug]
        if old := rows["old"].str.contains("environment").sum():
            sentences.append(f"{name}: {old} of {len(rows)} rows were measured in an earlier environment.")
        ceilings = content.loaded.results.ceilings.get(slug)
        if ceilings is None:
            sentences.append(f"{name}: its ceilings were not measured.")
        elif ceilings.environment != environment.of_device:
            sentences.append(f"{name}: its ceilings were measured in an earlier environment.")
    return sentences


def origin_section(content: Content) -> Section:
    """Return the section with each machine's rows by commit: how many are stale, why, and their dates."""
    rows = []
    for slug, name in content.machines.items():
        of_machine = content.rows[content.rows["gpu"] == slug]
        for (commit, dirty), group in of_machine.groupby(["commit", "dirty"]):
            days = sorted({str(when)[:10] for when in group["measured_at"]})
            stale = Counter(part for old in group["old"] for part in old.split(", ") if part)
            rows.append(
                [
                    name,
                    f"{str(commit)[:10]}{' with uncommitted changes' * bool(dirty)}",
                    str(len(group)),
                    str(group["old"].ne("").sum() or ""),
                    ", ".join(f"{part} {stale[part]}" for part in STALE if stale[part]),
                    ", ".join(sorted(group["kernel"].unique())),
                    " to ".join(dict.fromkeys((days[0], days[-1]))),
                ]
            )
    columns = ("machine", "commit", "rows", "stale", "of what", "kernels", "measured")
    table = TextTable("Rows by machine and commit", columns, rows, columns[2:4])
    blocks: list[Any] = [Text(ORIGIN_NOTE, "note"), table]
    if left_out := content.loaded.left_out:
        were = "rows were" if left_out > 1 else "row was"
        blocks.append(Text(f"{left_out} more {were} left out: timed in other ways, or again since.", "note"))
    return Section("Where the rows come from", blocks)
