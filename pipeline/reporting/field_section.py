"""The report's sections on other providers: "Where we lose", "Against the field", "Finals over commits"."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, median
from typing import Any

from kernel_pipeline.records.measurement import Accuracy
from kernel_pipeline.records.point import order

from .. import as_typed
from ..points import notation
from ..store.finals import ONE_ROUND, Final, decided
from . import answers, losses
from .content import Content
from .document import Section, Text
from .field import HeadToHead, OtherRatio
from .headlines import headline_of
from .numbers import RATES, microseconds, number, percent, speedup
from .tables import TextTable

MOST_RUNS = 3
"""The history shows at most this many of the newest runs of a kernel on a machine."""

LOSSES_NOTE = (
    "The problems at which another provider is faster than our fastest by more than 1 %, worst first. "
    "Others are torch's providers, the textbook kernels and other projects' kernels. A ratio is the "
    "other's time over ours, from finals if ours had finals there, else from the sweeps. `another run`: the "
    "times come from two runs in equal environments. `one round`: these finals decide nothing. `<=`: an "
    "upper bound, since the GPU was throttled. `!`: not to be trusted. The reason comes from the kernel's "
    "page."
)

FIELD_NOTE = (
    "Our fastest provider at each problem, beside the other providers that were timed there. A number is "
    "the other's time over ours: above 1 ours is faster. The first column is the kernel's baseline. "
    "`triton_row` is the textbook Triton kernel, which holds a row in a program; it is not one of ours. "
    "Timings that are not to be trusted are left out, except upper bounds, which are marked with `<=`."
)

FINALS_NOTE = (
    "Finals measure the best configuration of each provider side by side, in rounds. A ratio of finals has "
    "its 90 % interval; `=` marks no difference beyond the margin, `?` a ratio that the rounds did not "
    "decide. `another run`: the other was not among these finals; its newest time in an equal environment "
    "counts. The oracle is the best of all our configurations by the sweep. Sustained times follow two "
    "seconds of the same work, at the clock that the GPU's power allows."
)

CALLERS_NOTE = (
    "The configuration that a caller gets stands by how it is chosen, with its time over that of our "
    "fastest. At problems that are not `exact`, the table of tuned configurations was made without them. "
    "The distance from float64 is over all problems; `repeats` counts the problems at which a second call "
    "gives the same bits. The unit belongs to the right value. If the right value is nearly 0, as in a sum "
    "that cancels, the largest distance says little."
)

SWEEPS_NOTE = "By the sweep, without finals: the best of each provider's configurations."

HISTORY_NOTE = (
    "Our fastest provider at each problem in each run of finals: its time in microseconds, its speedup "
    "over the previous run, and its configuration if it has changed. `one round`: one of the "
    "two runs had only one round, which decides nothing. Runs on several days and hosts differ by a "
    f"percent or two without a reason in the code: `{as_typed('compare')}` says whether two commits "
    "differ."
)


def losses_section(content: Content) -> Section:
    """Return the section on the problems at which others are faster."""
    if not content.losses:
        return Section(answers.FIELD, [Text("No other provider is faster by more than 1 %.")])
    doubts = [Text(one, "alarm") for one in losses.doubts(content.losses, content.machines)]
    table = losses.table(content.losses, content.machines)
    return Section(answers.FIELD, [Text(LOSSES_NOTE, "note", has_code=True), table, *doubts])


def field_section(content: Content) -> Section:
    """Return the section on ours beside the others, with a part for each kernel and machine."""
    parts = []
    for kernel in content.about:
        for slug in content.machines:
            some = [one for one in content.field if (one.kernel, one.gpu) == (kernel, slug)]
            if some:
                parts.append(_part(content, kernel, slug, some))
    notes = [Text(note, "note", has_code=True) for note in (FIELD_NOTE, FINALS_NOTE, CALLERS_NOTE)]
    return Section("Against the field", [*notes, *parts])


def _part(content: Content, kernel: str, slug: str, some: Sequence[HeadToHead]) -> Section:
    """Return the part of one kernel on one machine."""
    where, others = f"{kernel} on {content.machines[slug]}", content.about[kernel].others
    unfinished = [f"{one.where} ({', '.join(one.unasked)})" for one in some if one.unasked]
    some = [one for one in some if not one.unasked]
    held = [row for row in content.loaded.finals if (row.point.kernel, row.origin.gpu) == (kernel, slug)]
    blocks: list[Any] = []
    if some:
        origins = [one.origin for one in some if one.origin is not None]
        commits = sorted({f"{one.commit[:10]}{', edited' * one.dirty}" for one in origins})
        how = f"Finals of commit {' and '.join(commits)}." if commits else SWEEPS_NOTE
        lost = [f"{one.where} ({', '.join(one.lost)})" for one in some if one.lost]
        at = f"{len(lost)} of {len(some)} problems: {'; '.join(lost)}"
        at = at if lost else f"none of {len(some)} problems"
        callers = _callers_table(where, some)
        blocks += [
            Text(how),
            *([Text("The configuration that a caller gets:"), callers] if callers.rows else []),
            _scores_table(where, some, others),
            Text(f"Slower than another by more than 1 % at {at}."),
            _problems_table(where, some, others),
            *(Text(sentence, "alarm") for sentence in losses.doubts(some)),
        ]
    sustained, accuracy = _sustained_table(where, held), _accuracy(where, held)
    blocks += [Text("After two seconds of the same work:"), sustained] if sustained.rows else []
    blocks += [Text("Distance from float64, in units in the last place:"), accuracy] if accuracy.rows else []
    if unfinished:
        left = f"Left out, as not all of ours have been measured there: {'; '.join(unfinished)}."
        blocks.append(Text(left))
    return Section(where, blocks, {"kernel": kernel, "gpu": slug}, is_folded=True, look="field")


def _met(some: Sequence[HeadToHead], others: Sequence[str]) -> dict[str, list[OtherRatio]]:
    """Return each other provider's ratios at all problems where it was timed."""
    met = {other: [one.others[other] for one in some if other in one.others] for other in others}
    return {other: ratios for other, ratios in met.items() if ratios}


def _scores_table(where: str, some: Sequence[HeadToHead], others: Sequence[str]) -> TextTable:
    met = _met(some, others)
    not_slower = [f"{sum(not one.is_faster for one in ratios)} of {len(ratios)}" for ratios in met.values()]
    rows = [
        [
            "geometric mean",
            *(speedup(geometric_mean(one.ratio for one in ratios)) for ratios in met.values()),
        ],
        ["worst", *(speedup(min(one.ratio for one in ratios)) for ratios in met.values())],
        ["not slower by 1 %", *not_slower],
    ]
    return TextTable(f"{where}: the other's time over ours", ["", *met], rows, numbers=list(met))


def _problems_table(where: str, some: Sequence[HeadToHead], others: Sequence[str]) -> TextTable:
    against = list(_met(some, others))
    rates = list(dict.fromkeys(one.headline for one in some))
    has_callers, has_oracle = any(one.dispatched for one in some), any(one.oracle for one in some)
    numbers = ["us", *(RATES[name] for name in rates), "of ceiling", *against]
    rows = []
    for one in some:
        got, best = one.dispatched, one.oracle
        dispatched = f"{notation.label(got.point)}, {number(got.median_us)} ({got.dispatched})" if got else ""
        oracle = f"{best.label}, {microseconds(best.us, best.is_bound)}" if best else ""
        rows.append(
            [
                one.words,
                one.extent,
                *[dispatched] * has_callers,
                *[oracle] * has_oracle,
                one.ours.label,
                microseconds(one.ours.us, one.ours.is_bound),
                *(number(one.rate) if one.headline == name else "" for name in rates),
                percent(one.ceiling_fraction),
                *(_ratio(one, other) for other in against),
            ]
        )
    chosen = ["dispatched, us"] * has_callers + ["oracle, us"] * has_oracle
    about = [{"words": one.words} for one in some]
    title = f"{where}, problem by problem"
    return TextTable(title, ["dtype", "problem", *chosen, "ours", *numbers], rows, numbers, about=about)


def _callers_table(where: str, some: Sequence[HeadToHead]) -> TextTable:
    """Return the table of the configurations that callers get, with a row for each way of choosing.

    A row has the number of problems, the mean and worst time over our fastest, and the worst problem.
    """
    groups: dict[str, list[tuple[float, str]]] = {}
    for versus in some:
        if (got := versus.dispatched) is not None:
            over = 1.0 if got.against is None else got.against.ratio
            groups.setdefault(str(got.dispatched), []).append((over, versus.where))
    rows = []
    for how, those in sorted(groups.items()):
        worst, place = max(those)
        mean = geometric_mean(ratio for ratio, _ in those)
        rows.append([how, str(len(those)), number(mean), number(worst), place])
    columns = ("chosen", "problems", "geometric mean", "worst", "at")
    return TextTable(f"{where}: what a caller gets", columns, rows, columns[1:4])


def _ratio(versus: HeadToHead, other: str) -> str:
    """Return a ratio as text; a ratio of finals has half of its interval and a mark for its verdict."""
    one = versus.others.get(other)
    if one is None:
        return ""
    if one.against is None or one.against.high is None or one.time.rounds == 1:
        return losses.ratio(one)
    mark = {"same": " =", "undecided": " ?"}.get(one.against.verdict, "")
    half = 50 * (one.against.high - one.against.low) / one.ratio
    return f"{speedup(one.ratio)} ± {number(half, 2)} %{mark}"


def _accuracy(where: str, held: Sequence[Final]) -> TextTable:
    """Return the table of each provider's accuracy in finals, by the problems' words.

    A row has the median and the largest distance from float64 in units in the last place, and the number of
    problems at which a second call gives the same bits.
    """
    groups: dict[tuple[str, str], list[Accuracy]] = {}
    for row in held:
        if row.accuracy is not None:
            groups.setdefault((notation.words(row.point), row.point.provider), []).append(row.accuracy)
    rows = [
        [
            words,
            provider,
            number(median(one.ulp_median for one in some), 2),
            number(max(one.ulp_worst for one in some)),
            f"{sum(one.repeats for one in some)} of {len(some)}",
        ]
        for (words, provider), some in sorted(groups.items())
    ]
    columns = ("dtype", "provider", "median", "largest", "repeats")
    return TextTable(f"{where}: distance from float64", columns, rows, columns[2:])


def _sustained_table(where: str, held: Sequence[Final]) -> TextTable:
    """Return the table of sustained times beside the burst times of the same finals."""
    burst = {(row.key, row.point): row for row in held if row.power == "burst"}
    rows = []
    for row in held:
        rested = burst.get((row.key, row.point))
        if row.power == "burst" or rested is None:
            continue
        beside, rate = row.against, headline_of(row)
        verdict = "" if beside is None else decided(beside.verdict, len(row.rounds_us)) or beside.verdict
        rows.append(
            [
                notation.words(row.point),
                notation.extent(row.point),
                notation.label(row.point),
                number(rested.median_us),
                number(row.median_us),
                f"{number(getattr(row.rate, rate))} {RATES[rate]}",
                percent(row.rate.ceiling_fraction),
                "" if row.sm_clock_mhz is None else f"{row.sm_clock_mhz} MHz",
                number(row.joules),
                "" if beside is None else f"{speedup(beside.ratio)} {verdict}",
            ]
        )
    columns = (
        *("dtype", "problem", "configuration", "after a rest, us", "us", "rate", "of ceiling", "clock"),
        *("J a call", "over ours"),
    )
    return TextTable(f"{where}, sustained", columns, rows, columns[3:9])


def history_section(content: Content) -> Section:
    """Return the section with our fastest in each run of finals, a table for each kernel and machine.

    A cell has the time in microseconds, the speedup over the previous run, ``one round`` if either run had
    only one round, and the configuration if it differs from the previous run's.
    """
    best: dict[tuple[str, str], dict[str, dict[str, Final]]] = {}
    runs: dict[tuple[str, str], dict[str, Final]] = {}
    for row in sorted(content.loaded.every_final, key=lambda row: (row.origin.measured_at, order(row.point))):
        if row.by != "own" or row.power != "burst" or row.against is not None:
            continue
        place = row.point.kernel, row.origin.gpu
        runs.setdefault(place, {})[row.origin.run] = row
        problem = f"{notation.extent(row.point)} {notation.words(row.point)}".strip()
        best.setdefault(place, {}).setdefault(problem, {})[row.origin.run] = row
    blocks: list[Any] = [Text(HISTORY_NOTE, "note", has_code=True)]
    for (kernel, gpu), problems in sorted(best.items()):
        shown = list(runs[kernel, gpu].items())[-MOST_RUNS:]
        heads = [f"{row.origin.commit[:10]}, {row.origin.measured_at:%Y-%m-%d}" for _, row in shown]
        rows = [[problem, *_history([of.get(run) for run, _ in shown])] for problem, of in problems.items()]
        where = f"{kernel} on {content.machines.get(gpu, gpu)}"
        table = TextTable(f"{where}: our fastest at each run", ["problem", *heads], rows)
        blocks.append(
            Section(f"{where}, over commits", [table], {"kernel": kernel, "gpu": gpu}, is_folded=True)
        )
    return Section(answers.HISTORY, blocks)


def _history(rows: Sequence[Final | None]) -> list[str]:
    cells, before = [], None
    for row in rows:
        if row is None:
            cells.append("")
            continue
        words = [number(row.median_us)]
        if before is not None:
            is_once = 1 in (len(before.rounds_us), len(row.rounds_us))
            words.append(f"x {speedup(before.median_us / row.median_us)}" + f" ({ONE_ROUND})" * is_once)
        if before is None or before.point != row.point:
            words.append(notation.label(row.point))
        cells.append(", ".join(words))
        before = row
    return cells
