"""Write the Markdown descriptions of experiments, ledgers and ad-hoc sweeps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernel_pipeline.records.measurement import Measurement

from .. import as_typed
from ..points import notation
from ..reporting import headlines, lines
from ..reporting.lines import PlacedMeasurement
from ..reporting.numbers import RATES, microseconds, number, percent, speedup

MOST_CHARACTERS = 6000
"""The maximum length of a run's description, which is a tag. The run's artifacts have the whole ledger."""

MOST_ROWS = 60
"""The maximum number of rows of a whole table. A longer table shows only the fastest provider at each
problem."""

ABSENT = (
    "Traces, listings and `.ncu-rep` files were not there when this was published: git does not hold them. "
    "The commands `profile`, `counters` and `codegen` make them, and "
    f"`{as_typed('publish', 'artifacts=outputs/artifacts')}` adds them: give each `"
)

HEADINGS = ("problem", "dtype", "provider", "us", "rate", "of ceiling")

COMPARISONS = (
    "Two configurations, commits or trees, measured side by side in rounds: a run for each comparison. "
    "`b_over_a` is the geometric mean of b's time over a's, so below 1 b is the faster. `faster`, "
    "`slower`, `same` and `undecided` count the points by verdict. The description of a run has its table."
)


def of_kernel(kernel: str, usual: Sequence[int]) -> str:
    """Return the description of a kernel's experiment: how to read it, and three searches. ``usual`` are the
    x values of its views' columns."""
    entry = headlines.entry_of(kernel)
    rate = headlines.headline(kernel, "")
    x = entry.loaded.kernel.size[0] if entry else "x"
    baseline = entry.loaded.kernel.baseline if entry else "torch"
    at = f"{rate}_at_{usual[0] if usual else 'N'}"
    what = _sentence(entry.loaded.summary) if entry else f"{kernel}, a kernel of another folder."
    return f"""{what} People compare {RATES[rate]}; the baseline is {baseline}.

**Runs.** One for each configuration (`tags.kind = 'config'`), one for the best of each provider (`best`), one
for all results of a GPU (`sweep`), one for each ad-hoc sweep (`ad_hoc`). Each names its command and commit.

**How to read it.** Choose a view in the menu *Views*, then the chart. The step of a metric is `{x}`, on a
logarithmic axis. A metric without `_at_` shows its value at the largest `{x}` of its run, which differs from
run to run. Metrics such as `{at}` are at equal problems: compare these. `ceiling_fraction` is the share of
the machine's measured ceiling.
`... and params.dtype = 'float32'` at the end of a search leaves one dtype.

**Searches worth trying**

- `tags.kind = 'best' and params.provider != '{baseline}'`: the rivals of {baseline}
- `tags.kind = 'config' and metrics.ceiling_fraction > 0.9`: near the ceiling at their largest problem
- `tags.kind = 'config' and tags.status != 'ok'`: without a time; the tag `notes` says why

**What MLflow can't show.** The report has each problem of two GPUs, rooflines, and finals with their
verdicts: `reports/` in the repository, and among the artifacts of a run of kind `sweep`.
"""


def of_results(placed: Sequence[PlacedMeasurement], artifacts: Mapping[str, Path]) -> str:
    """Return the description of a ledger: points by status, the best of each provider, and how to add large
    files if ``artifacts`` lacks them."""
    kernel = placed[0].point.kernel
    large = (
        "" if any(name.startswith("artifacts/") for name in artifacts) else f"{ABSENT}kernel={kernel}`.\n\n"
    )
    commits = len({one.row.origin.commit for one in placed})
    named = f"{commits} commits; the tag `commit` names the newest" if commits > 1 else "one commit"
    return _cut(
        f"All results of {kernel} on this machine: {_ended(placed)}, of {named}.\n\n{large}{_table(placed)}"
    )


def of_sweep(placed: Sequence[PlacedMeasurement], changed: str) -> str:
    """Return the description of an ad-hoc sweep: its command, commit, measured changes, and table."""
    newest: Measurement = max(placed, key=lambda one: one.at_ms).row
    commit = f"`{newest.origin.commit[:12]}`{' with edits' if newest.origin.dirty else ''}"
    why = f"Measured since the last time: {changed}. " if changed else ""
    return _cut(f"`{newest.origin.command}` at commit {commit}. {why}{_ended(placed)}.\n\n{_table(placed)}")


def _ended(placed: Sequence[PlacedMeasurement]) -> str:
    counts = Counter(one.row.outcome.status for one in placed)
    return (
        f"{len(placed)} points, {', '.join(f'{count} {status}' for status, count in sorted(counts.items()))}"
    )


def _table(placed: Sequence[PlacedMeasurement]) -> str:
    """Return a table with the fastest configuration of each provider at each problem, fastest first. A long
    table shows only the fastest provider at each problem."""
    fastest: dict[tuple[str, str, str, str], PlacedMeasurement] = {}
    for one in placed:
        point, timing = one.point, one.row.outcome.timing
        if timing is None:
            continue
        slot = notation.extent(point), notation.words(point), one.cache, point.provider
        held = fastest.get(slot)
        if held is None or _rank(one) < _rank(held):
            fastest[slot] = one
    entry = headlines.entry_of(placed[0].point.kernel)
    baseline = entry.loaded.kernel.baseline if entry else ""
    headings = [*HEADINGS, *([f"x {baseline}"] if baseline else [])]
    rows = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    problems: dict[tuple[str, str, str], list[PlacedMeasurement]] = {}
    doubts = Counter[str]()
    for (extent, words, cache, _), one in fastest.items():
        problems.setdefault((extent, words, cache), []).append(one)
    for (extent, words, cache), found in problems.items():
        base = next((one for one in found if one.point.provider == baseline), None)
        for one in sorted(found, key=_rank)[: None if len(fastest) <= MOST_ROWS else 1]:
            cells = [extent, f"{words} hot" if cache == lines.HOT else words, *_numbers(one)]
            if baseline:
                is_told = base is not None and not {
                    base.row.outcome.incomparable,
                    one.row.outcome.incomparable,
                } - {None}
                ratio = speedup(_rank(base)[1] / _rank(one)[1]) if base and is_told else ""
                why = one.doubt or (base.doubt if base and ratio else "")
                doubts.update([why] if why else [])
                cells.append(ratio + "!" * bool(ratio and why))
            rows.append(f"| {' | '.join(cells)} |")
    notes = [f"! {count} row{'s' * (count != 1)} not to be trusted: {why}." for why, count in doubts.items()]
    return "\n\n".join(["\n".join(rows), *notes])


def _numbers(one: PlacedMeasurement) -> list[str]:
    unit = headlines.headline_of(one.row)
    rate = one.row.rate
    return [
        f"{one.point.provider} {notation.configuration(one.point)}".rstrip(),
        microseconds(_rank(one)[1], one.is_bound) + "!" * (not one.trusted and not one.is_bound),
        f"{number(getattr(rate, unit))} {RATES[unit]}" if rate else "",
        percent(rate.ceiling_fraction) if rate else "",
    ]


def _rank(one: PlacedMeasurement) -> tuple[bool, float]:
    """Return the sort key of a row: trusted times and upper bounds come first, then shorter times."""
    assert one.row.outcome.timing is not None, "only timed rows are ranked"
    return not (one.trusted or one.is_bound), one.row.outcome.timing.median_us


def _cut(text: str) -> str:
    """Cut the text after the last whole line that fits in a tag."""
    if len(text) <= MOST_CHARACTERS:
        return text
    kept = text[: text.rindex("\n", 0, MOST_CHARACTERS)]
    return f"{kept}\n\nThe ledger, an artifact of this run, has the rest."


def _sentence(text: str) -> str:
    """Return the first sentence of a text."""
    first = re.split(r"(?<=\.)\s", " ".join(text.split()).replace("``", "`"))[0]
    return first if first.endswith(".") else f"{first}."
