"""The report's machines side by side, and where its rows come from."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pipeline.reporting.content import Content
from pipeline.reporting.document import Section, Text
from pipeline.reporting.loading import STALE, relevant_environment
from pipeline.reporting.numbers import GAP, number
from pipeline.reporting.ranking import version_of
from pipeline.reporting.tables import TextTable

ORIGIN_NOTE = (
    "A stale row was measured from another source than the kernel's here, or by another version of the "
    "code that times and verifies."
)

EARLIER_NOTE = (
    "Rows of earlier versions of the measuring code. Their times are not compared with those of later "
    "ones. Replaced are the points that a later version has measured."
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
"""What is shown of an environment, by the name of the line."""


def machines_section(content: Content) -> Section:
    """The machines side by side, and what does not belong to the environment that they have now."""
    alarms = [Text(sentence, "alarm") for sentence in elsewhere(content)]
    return Section("Machines", [_machines(content), *alarms])


def _machines(content: Content) -> TextTable:
    """A property, and its value on each machine; those that none has are left out."""
    found = content.loaded.results
    environments = [found.environments.get(slug) for slug in content.machines]
    ceilings = [found.ceilings.get(slug) for slug in content.machines]
    arithmetics = dict.fromkeys(name for one in ceilings if one for name in one.matmul_tflops)
    rows = [["copy ceiling", *(f"{number(one.copy_gbps)} GB/s" if one else GAP for one in ceilings)]]
    for name in arithmetics:
        rates = [one.matmul_tflops.get(name) if one else None for one in ceilings]
        cells = (GAP if rate is None else f"{number(rate)} TFLOP/s" for rate in rates)
        rows.append([f"matmul ceiling, {name}", *cells])
    memory = [one.memory_mib if one else None for one in environments]
    rows.append(["memory", *("" if mib is None else f"{mib / 1024:.0f} GiB" for mib in memory)])
    for name, field in FIELDS.items():
        values = [getattr(one, field, None) for one in environments]
        rows.append([name, *("" if value is None else str(value) for value in values)])
    known = [row for row in rows if {*row[1:]} - {"", GAP}]
    return TextTable("The machines side by side", ["", *content.machines.values()], known)


def elsewhere(content: Content) -> list[str]:
    """Sentences on results that don't belong to the environment their machine has now."""
    sentences = []
    for slug, name in content.machines.items():
        environment = content.loaded.results.environments.get(slug)
        rows = content.rows[content.rows["gpu"] == slug]
        if environment is None:
            sentences.append(f"{name}: its environment was not recorded.")
            continue
        pairs = rows[["kernel", "provider"]].drop_duplicates().itertuples(index=False)
        relevant = {(k, p): relevant_environment(k, p, environment) for k, p in pairs}
        counts = Counter(zip(rows["kernel"], rows["provider"], rows["environment"], strict=True))
        old = sum(count for (*of, seen), count in counts.items() if relevant[tuple(of)] not in (None, seen))
        if old:
            sentences.append(f"{name}: {old} of {len(rows)} rows were measured in an earlier environment.")
        ceilings = content.loaded.results.ceilings.get(slug)
        if ceilings is None:
            sentences.append(f"{name}: its ceilings were not measured.")
        elif ceilings.environment != environment.of_device:
            sentences.append(f"{name}: its ceilings were measured in an earlier environment.")
    return sentences


def origin_section(content: Content) -> Section:
    """From which commits each machine's rows are, how many of them are stale and of what, and when they were
    measured; and what is of earlier versions of the measuring code."""
    rows = []
    for slug, name in content.machines.items():
        of_machine = content.rows[content.rows["gpu"] == slug]
        for (commit, dirty), group in of_machine.groupby(["commit", "dirty"]):
            days = sorted({str(when)[:10] for when in group["measured_at"]})
            stale = Counter(part for parts in group["stale"] for part in parts)
            rows.append(
                [
                    name,
                    f"{str(commit)[:10]}{' with uncommitted changes' * bool(dirty)}",
                    str(len(group)),
                    str(sum(map(bool, group["stale"])) or ""),
                    ", ".join(f"{part} {stale[part]}" for part in STALE if stale[part]),
                    ", ".join(sorted(group["kernel"].unique())),
                    " to ".join(dict.fromkeys((days[0], days[-1]))),
                ]
            )
    columns = ("machine", "commit", "rows", "stale", "of what", "kernels", "measured")
    blocks: list[Any] = [
        Text(ORIGIN_NOTE, "note"),
        TextTable("Rows by machine and commit", columns, rows, columns[2:4]),
    ]
    if left_out := content.loaded.left_out:
        were = "rows were" if left_out > 1 else "row was"
        blocks.append(Text(f"{left_out} more {were} left out: timed in other ways, or again since.", "note"))
    if (earlier := earlier_table(content)).rows:
        blocks += [Text(EARLIER_NOTE, "note"), earlier]
    return Section("Where the rows come from", blocks)


def earlier_table(content: Content) -> TextTable:
    """The rows of earlier versions of the measuring code than the newest, by kernel and machine."""
    rows = content.rows.assign(version=content.rows["measurement"].map(version_of))
    newest = rows["version"].max()
    found = []
    for (kernel, gpu), group in rows.groupby(["kernel", "gpu"]):
        old = group[group["version"] < newest]
        if not old.empty:
            versions = ", ".join(sorted(set(old["measurement"])))
            share = f"{1 - len(old) / len(group):.0%}"
            found.append([str(kernel), content.machines[str(gpu)], str(len(old)), versions, share])
    columns = ("kernel", "machine", "rows", "versions", "replaced")
    return TextTable("Earlier measurements", columns, found, ("rows", "replaced"))
