"""The report's machines side by side, and where its rows come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.points.frozen import digest
from pipeline.reporting.content import Content
from pipeline.reporting.frames import entry_of
from pipeline.reporting.numbers import GAP, number
from pipeline.store.environment import Environment
from pipeline.store.results import Results

STALE = ("source", "measurement", "environment")
"""The parts of a row's key that can be old: what its provider runs, the code that times and verifies, and the
machine's environment."""


def properties(results: Results, slugs: list[str]) -> list[tuple[str, list[str]]]:
    """The machines side by side: a property, and its value on each; those that none has are left out."""
    environments = [results.environments.get(slug) for slug in slugs]
    ceilings = [results.ceilings.get(slug) for slug in slugs]

    def each(field: str, form: str = "{}") -> list[str]:
        values = [getattr(environment, field, None) for environment in environments]
        return ["" if value is None else form.format(value) for value in values]

    arithmetics = list(dict.fromkeys(name for c in ceilings if c for name in c.matmul_tflops))
    memory = [e.memory_mib if e else None for e in environments]
    rows = [
        ("copy ceiling", [f"{number(c.copy_gbps)} GB/s" if c else GAP for c in ceilings]),
        *(
            (
                f"matmul ceiling, {name}",
                [
                    f"{number(c.matmul_tflops[name])} TFLOP/s" if c and name in c.matmul_tflops else GAP
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
    return [(name, values) for name, values in rows if {*values} - {"", GAP}]


def elsewhere(content: Content, names: Mapping[str, str]) -> list[str]:
    """Sentences on results that don't belong to the environment their machine has now."""
    sentences = []
    for slug, name in names.items():
        environment = content.results.environments.get(slug)
        rows = content.rows[content.rows["gpu"] == slug]
        if environment is None:
            sentences.append(f"{name}: its environment was not recorded.")
            continue
        keyed = {
            (kernel, provider): keyed_for(kernel, provider, environment)
            for kernel, provider in rows[["kernel", "provider"]].drop_duplicates().itertuples(index=False)
        }
        counts = Counter(zip(rows["kernel"], rows["provider"], rows["environment"], strict=True))
        old = sum(count for (*of, seen), count in counts.items() if keyed[tuple(of)] not in (None, seen))
        if old:
            sentences.append(f"{name}: {old} of {len(rows)} rows were measured in an earlier environment.")
        ceilings = content.results.ceilings.get(slug)
        if ceilings is None:
            sentences.append(f"{name}: its ceilings were not measured.")
        elif ceilings.environment != environment.of_device:
            sentences.append(f"{name}: its ceilings were measured in an earlier environment.")
    return sentences


def keyed_for(kernel: str, provider: str, environment: Environment) -> str | None:
    """The digest of an environment as it is in a provider's key; None where that can't be told: of a provider
    that is not there, and of a peer, whose package only the machine itself has."""
    entry = entry_of(kernel)
    known = {} if entry is None else {one.name: one for one in entry.loaded.kernel.providers}
    if provider not in known or known[provider].package:
        return None
    return digest(environment.keyed_for(known[provider]))


def freshness(rows: pd.DataFrame, names: Mapping[str, str]) -> list[dict[str, Any]]:
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
                    "days": " to ".join(dict.fromkeys((days[0], days[-1]))),
                }
            )
    return lines
