"""What a report is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pipeline.reporting.charts import Chart
from pipeline.reporting.drawings import Drawing
from pipeline.reporting.field import HeadToHead
from pipeline.reporting.gpus import CommonProblem, OtherSources
from pipeline.reporting.history import KernelHistory
from pipeline.reporting.plots import Style
from pipeline.reporting.summary import Summary
from pipeline.store.comparisons import Comparison
from pipeline.store.environment import Environment
from pipeline.store.evidence import Evidence
from pipeline.store.finals import Final
from pipeline.store.results import Results, machines_first_gpus


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
    """A drawing, its SVG as a file of its own, and its charts for a page."""

    drawing: Drawing
    svg: str
    charts: Sequence[Chart]


@dataclass(frozen=True)
class Content:
    """All that a report is made of.

    ``results`` has of the measurements those that evidence is about, and ``machines`` are names by slug.
    ``rows`` are the measurements, with what is ``stale`` about each, and ``best`` each provider's best
    configuration with its speedup. ``field`` are the problems at which ours met others, ``losses`` those at
    which any of them is faster, worst first, ``summaries`` what follows of the field, ``side_by_side`` the
    same of GPUs at the problems that they have in common, ``common_problems`` GPUs at common problems and
    ``other_sources`` those at which no provider is the same. ``finals`` are the newest of each problem,
    ``history`` those of every run, ``comparisons`` all that were made. ``plots`` are drawings of each kernel
    that was timed, ``rooflines`` of each whose problems differ in flops a byte, ``ladders`` of each with a
    problem that several providers were timed at, ``landscapes`` the maps of each. ``overview`` is the figure
    of what is side by side, empty without it. ``otherwise`` counts the measurements that were left out, since
    they were timed in other ways or anew."""

    results: Results
    machines: Mapping[str, str]
    rows: pd.DataFrame
    best: pd.DataFrame
    field: Sequence[HeadToHead]
    losses: Sequence[HeadToHead]
    finals: Sequence[Final]
    history: Sequence[KernelHistory]
    comparisons: Sequence[Comparison]
    about: Mapping[str, About]
    summaries: Sequence[Summary]
    side_by_side: Sequence[Summary]
    common_problems: Sequence[CommonProblem]
    other_sources: Sequence[OtherSources]
    overview: str
    plots: Mapping[str, Sequence[Plot]]
    rooflines: Mapping[str, str]
    ladders: Mapping[str, str]
    landscapes: Mapping[str, Sequence[Mapping[str, Any]]]
    evidence: Evidence
    styles: Mapping[str, Style]
    unreadable: Sequence[str]
    otherwise: int


def machines(results: Results, measured: Iterable[str]) -> dict[str, str]:
    """The name of every machine that left results, by slug: GPUs first, then CPUs; ``measured`` are those
    that have measurements."""
    known = results.environments
    slugs = machines_first_gpus([*measured, *known, *results.ceilings])
    return {slug: _name(known[slug]) if slug in known else slug for slug in slugs}


def _name(environment: Environment) -> str:
    """A device's name without the words that all processors carry."""
    noise = r"\((R|TM|C)\)|@.*|\b(CPU|Processor|\d+-Core)\b"
    plain = re.sub(noise, " ", environment.name, flags=re.IGNORECASE)
    return " ".join(plain.split())
