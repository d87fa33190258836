"""What the page "against the field" shows: a part a kernel and machine."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, median
from typing import Any

from pipeline.points import notation
from pipeline.reporting import losses
from pipeline.reporting.content import Content
from pipeline.reporting.field import HeadToHead, scores
from pipeline.reporting.frames import headline_of
from pipeline.reporting.numbers import RATES, microseconds, number, percent, speedup
from pipeline.store.finals import Final, decided
from pipeline.store.turns import Accuracy


def view(content: Content) -> dict[str, Any]:
    """What both templates of the page "against the field" show: a part a kernel and machine."""
    names = content.machines
    parts = []
    for kernel in content.about:
        for slug, machine in names.items():
            some = [m for m in content.field if (m.kernel, m.gpu) == (kernel, slug)]
            if some:
                held = [r for r in content.finals if (r.point.kernel, r.origin.gpu) == (kernel, slug)]
                part = _part(kernel, slug, machine, some, content.about[kernel].rivals)
                parts.append(part | {"accuracy": _accuracy(held), "sustained": _sustained(held)})
    return {
        "parts": parts,
        "losses": losses.view(content.losses, names),
        "styles": list(content.styles.values()),
    }


def _part(
    kernel: str, slug: str, machine: str, some: Sequence[HeadToHead], rivals: Sequence[str]
) -> dict[str, Any]:
    """One kernel on one machine."""
    unfinished = [f"{one.where} ({', '.join(one.unasked)})" for one in some if one.unasked]
    some = [versus for versus in some if not versus.unasked]
    against = scores(some, rivals)
    origins = [versus.origin for versus in some if versus.origin is not None]
    rates = list(dict.fromkeys(versus.headline for versus in some))
    return {
        "id": f"field-{kernel}-{slug}",
        "kernel": kernel,
        "machine": machine,
        "rivals": list(against),
        "finals": sorted({f"{one.commit[:10]}{', edited' * one.dirty}" for one in origins}),
        "rates": [RATES[name] for name in rates],
        "means": [speedup(score.mean) for score in against.values()],
        "worst": [speedup(score.worst) for score in against.values()],
        "won": [f"{score.won} of {score.problems}" for score in against.values()],
        "unfinished": unfinished,
        "losses": [f"{one.where} ({', '.join(one.lost)})" for one in some if one.lost],
        "doubts": losses.doubts(some),
        "dispatched": _dispatched(some),
        "lines": [
            {
                "dispatched": _what_callers_get(versus),
                "words": versus.words,
                "extent": versus.extent,
                "ours": versus.ours.label,
                "us": microseconds(versus.ours.us, versus.ours.is_bound),
                "rates": [number(versus.rate) if versus.headline == name else "" for name in rates],
                "percent": percent(versus.ceiling_fraction),
                "oracle": _oracle(versus),
                "ratios": [
                    {"text": _ratio(versus, rival), "lost": rival in versus.lost} for rival in against
                ],
            }
            for versus in some
        ],
    }


def _dispatched(some: Sequence[HeadToHead]) -> list[list[str]]:
    """What callers get, by how it was chosen: at how many problems, its time over that of our fastest, and
    where that is the worst."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for versus in some:
        if (got := versus.dispatched) is not None:
            groups.setdefault(got.how, []).append((got.ratio, versus.where))
    return [
        [how, str(len(those)), number(geometric_mean(ratio for ratio, _ in those)), *_worst(those)]
        for how, those in sorted(groups.items())
    ]


def _worst(those: Sequence[tuple[float, str]]) -> list[str]:
    ratio, place = max(those)
    return [number(ratio), place]


def _oracle(versus: HeadToHead) -> str:
    best = versus.oracle
    return "" if best is None else f"{best.label}, {microseconds(best.us, best.is_bound)}"


def _what_callers_get(versus: HeadToHead) -> str:
    got = versus.dispatched
    return "" if got is None else f"{got.label}, {number(got.us)} ({got.how})"


def _accuracy(held: Sequence[Final]) -> list[list[str]]:
    """How right each provider's finalists are, of each words of a problem: the median and the largest
    distance over their problems, and at how many of these a second call gives other bits."""
    groups: dict[tuple[str, str], list[Accuracy]] = {}
    for row in held:
        if row.accuracy is not None:
            groups.setdefault((notation.words(row.point), row.point.provider), []).append(row.accuracy)
    return [
        [
            words,
            provider,
            number(median(one.ulp_median for one in some), 2),
            number(max(one.ulp_worst for one in some)),
            f"{sum(one.repeats for one in some)} of {len(some)}",
        ]
        for (words, provider), some in sorted(groups.items())
    ]


def _sustained(held: Sequence[Final]) -> list[list[str]]:
    """Times after seconds of the same work, beside those after a rest."""
    burst = {(row.key, row.point): row for row in held if row.power == "burst"}
    lines = []
    for row in held:
        rested = burst.get((row.key, row.point))
        if row.power == "burst" or rested is None:
            continue
        beside, rate = row.against, headline_of(row)
        said = "" if beside is None else decided(beside.verdict, len(row.rounds_us))
        lines.append(
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
                "" if beside is None else f"{speedup(beside.ratio)} {said or beside.verdict}",
            ]
        )
    return lines


def _ratio(versus: HeadToHead, rival: str) -> str:
    """A ratio; of finals with half of its interval, and where nothing is decided with a question mark."""
    one = versus.rivals.get(rival)
    if one is None:
        return ""
    if one.against is None or one.against.high is None or one.time.rounds == 1:
        return losses.ratio(one)
    mark = {"same": " =", "undecided": " ?"}.get(one.against.verdict, "")
    half = 50 * (one.against.high - one.against.low) / one.ratio
    return f"{speedup(one.ratio)} ± {number(half, 2)} %{mark}"
