"""Build an experiment's description, the views in its menu, and links to them.

A view is a search with a sort order, columns and charts. MLflow keeps it as a tag of the experiment, and a
link opens it by its key. Line charts have the workload's x on a logarithmic axis.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ..reporting import headlines
from . import metrics, notes
from .run_families import NOTE

SHARED = "mlflow.sharedViewState."
"""The prefix of the name of a view's tag. The view's key follows."""

KIND = {"mlflow.experimentKind": "custom_model_development"}
"""The tag that makes some releases of MLflow show their pages for experiments with metrics."""

MACHINE_LEARNING = "workflowType=machine_learning"
"""The query that keeps a link from opening MLflow's pages for language models, which show no runs."""

USUAL_X = (4096, 1024, 16384)
"""Targets for the x values of a view's columns: each column takes the workload value nearest to its target.
Runs are sorted by the first column."""

BEST, MACHINES, SWEEPS = "best", "gpus", "sweeps"
"""The keys of the views that every kernel has. The view of a provider has the key ``configurations-NAME``."""


@dataclass(frozen=True)
class View:
    """A search with its sort order, columns and charts. ``lines`` are metrics drawn against x, ``bars`` are
    metrics with one value per run."""

    key: str
    name: str
    search: str
    order: str
    columns: tuple[str, ...]
    lines: tuple[str, ...] = ()
    bars: tuple[str, ...] = ()

    def tag(self, place: int) -> tuple[str, str]:
        """Return the experiment's tag for this view. The menu sorts views by descending ``place``."""
        state = json.dumps(self._state(), separators=(",", ":"))
        envelope = {"name": self.name, "createdAt": place, "updatedAt": place, "state": state}
        return SHARED + self.key, json.dumps(envelope, separators=(",", ":"))

    def _state(self) -> dict[str, Any]:
        """Return the view in MLflow's format. MLflow uses its defaults for absent fields."""
        section = {"uuid": "rates", "name": "Rates", "columns": 2, "cardHeight": 420}
        rest = {"uuid": "rest", "name": "Model metrics", "display": False}
        seen = {"isReordered": True, "deleted": False, "isGenerated": False}
        charts = [*map(_line, self.lines), *map(_bar, self.bars)]
        return {
            "searchFilter": self.search,
            "orderByKey": self.order,
            "orderByAsc": False,
            "selectedColumns": list(self.columns),
            "runsHiddenMode": "FIRST_20_RUNS",
            "compareRunCharts": charts or None,
            "compareRunSections": [{"display": True} | section | seen, rest | seen] if charts else None,
            "isAccordionReordered": True,
        }


def _line(metric: str) -> dict[str, Any]:
    """Return a chart of a metric against the step, on a logarithmic axis."""
    return _card("LINE", metric) | {
        "selectedMetricKeys": [metric],
        "xAxisKey": "step",
        "xAxisScaleType": "log",
        "useGlobalXaxisKey": False,
        "scaleType": "log" if metric.endswith("_us") else "linear",
        "lineSmoothness": 0,
        "useGlobalLineSmoothing": False,
        "displayPoints": True,
    }


def _bar(metric: str) -> dict[str, Any]:
    return _card("BAR", metric)


def _card(kind: str, metric: str) -> dict[str, Any]:
    return {
        "uuid": f"{kind.lower()}-{metric}",
        "type": kind,
        "metricKey": metric,
        "metricSectionId": "rates",
        "runsCountToCompare": 20,
        "deleted": False,
        "isGenerated": False,
    }


def page(server: str, experiments: Sequence[str], view: str | None = None, search: str | None = None) -> str:
    """Return the link to a view of the experiment, or to a search in it. If there are several experiments or
    no view, return the link to their list."""
    place = f"{server.rstrip('/')}/#/experiments"
    if len(experiments) != 1 or view is None:
        return f"{place}?{MACHINE_LEARNING}"
    chosen = f"viewStateShareKey={view}"
    if search is not None:
        # Sort by a metric: MLflow then lists child runs by themselves, not below collapsed parents.
        order = quote(_column("metrics", metrics.SHARE))
        chosen = f"searchFilter={quote(search)}&orderByKey={order}&orderByAsc=false"
    return f"{place}/{experiments[0]}/runs?{MACHINE_LEARNING}&compareRunsMode=CHART&{chosen}"


def of_kernel(kernel: str) -> dict[str, str]:
    """Return the tags of a kernel's experiment. They don't depend on results."""
    return {**KIND, NOTE: notes.of_kernel(kernel, usual(kernel)), **_tags(views(kernel))}


def of_comparisons() -> dict[str, str]:
    """Return the tags of the experiment that holds comparisons."""
    columns = _columns(metrics=("b_over_a", "faster", "slower", "same", "undecided"), params=("a", "b"))
    seen = View(COMPARED, "Comparisons", "", "attributes.start_time", (*columns, _column("tags", "command")))
    return {**KIND, NOTE: notes.COMPARISONS, **_tags([seen])}


def _tags(found: Sequence[View]) -> dict[str, str]:
    return dict(view.tag(len(found) - place) for place, view in enumerate(found))


def views(kernel: str) -> list[View]:
    """Return the views of a kernel's experiment, in the order of the menu."""
    rate = headlines.headline(kernel, "")
    at = [f"{rate}_at_{x}" for x in usual(kernel)] or [rate]
    lines, bars = (rate, "ceiling_fraction", "median_us"), tuple(at[:1])
    order = _column("metrics", at[0])
    shares = [f"{metrics.SHARE}_at_{x}" for x in usual(kernel)[:1]]
    shown = (*at[:1], *shares, *at[1:])
    params = ("gpu", "provider", "dtype")

    entry = headlines.entry_of(kernel)
    best = View(
        BEST,
        "Best by provider",
        "tags.kind = 'best'",
        order,
        _columns(params=params, tags=("configurations",), metrics=shown),
        lines,
        bars,
    )
    found = [best, _sweeps(), _machines(kernel, rate)]
    for provider in entry.loaded.kernel.providers if entry else ():
        own_line = f"tags.line = '{usual_line(kernel)}' and params.provider = '{provider.name}'"
        found.append(
            View(
                f"configurations-{provider.name}",
                f"{provider.name}: configurations",
                f"tags.kind = 'config' and {own_line}",
                order,
                _columns(params=(*params, *provider.variables()), metrics=shown),
                lines,
                bars,
            )
        )
    return found


def _sweeps() -> View:
    """Return the view that lists ad-hoc sweeps, newest first."""
    columns = _columns(tags=("command", "commit", "changed", "points"), params=("gpu",))
    return View(SWEEPS, "Sweeps, newest first", "tags.kind = 'ad_hoc'", "attributes.start_time", columns)


def _machines(kernel: str, rate: str) -> View:
    """Return the view of the best rates on each GPU, with driver, torch and commit."""
    lines = tuple(f"best_{rate}_{dtype}" for dtype in _dtypes(kernel)) or (rate,)
    at = [f"{line}_at_{x}" for x in usual(kernel)[:1] for line in lines]
    columns = _columns(metrics=at, params=("gpu", "driver", "torch"), tags=("commit", "points"))
    order = _column("metrics", at[0]) if at else "attributes.start_time"
    return View(MACHINES, "Best of each GPU", "tags.kind = 'sweep'", order, columns, lines, tuple(at))


def _dtypes(kernel: str) -> list[str]:
    """Return the dtypes of the kernel's workloads."""
    entry = headlines.entry_of(kernel)
    workloads = entry.config.workloads.values() if entry else ()
    return sorted({str(value) for one in workloads for value in one.lists.get("dtype", ())})


def usual(kernel: str) -> list[int]:
    """Return the x values of the columns of a kernel's views; empty for a kernel outside the repository."""
    entry = headlines.entry_of(kernel)
    if entry is None:
        return []
    size = entry.loaded.kernel.size[0]
    workloads = entry.config.workloads
    known = {
        int(value)
        for name, workload in workloads.items()
        if entry.x_dimension(name) == size
        for value in (workload.size or ())
        if isinstance(value, int)
    }
    nearest = [min(sorted(known), key=lambda x: abs(math.log2(x / usual))) for usual in USUAL_X if known]
    return list(dict.fromkeys(nearest))


def usual_line(kernel: str) -> str:
    """Return the ``line`` tag of runs on the kernel's main line: along its size, other dimensions at their
    defaults."""
    entry = headlines.entry_of(kernel)
    return entry.loaded.kernel.size[0] if entry else ""


COMPARED = "comparisons"
"""The key of the only view in the experiment of comparisons."""


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"


def _columns(**of_kind: Iterable[str]) -> tuple[str, ...]:
    return tuple(_column(kind, name) for kind, names in of_kind.items() for name in names)
