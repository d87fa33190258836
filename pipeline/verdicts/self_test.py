"""What a comparison of equal sources says of the comparison itself: its false alarms, and the noise between
rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, log

from pipeline.points import notation, problems
from pipeline.points.catalog import Entry
from pipeline.points.point import Point
from pipeline.store.ceilings import Ceilings, rate
from pipeline.store.record import noise_class
from pipeline.verdicts.contest import Contest
from pipeline.verdicts.statistics import deviation
from pipeline.verdicts.verdict import Estimate, Verdict

Noise = Mapping[str, tuple[float, int]]
"""By ``noise_class`` the standard deviation of the logarithms of equal kernels' ratios, and of how many
points."""


def class_of(entry: Entry, point: Point, ceilings: Ceilings | None) -> str:
    """The ``noise_class`` of a point: what its time is limited by."""
    kernel = entry.loaded.kernel
    work = kernel.work(problems.make(kernel.problem, point.problem))
    return noise_class(rate(1.0, work, ceilings), 1.0)


def noise(contest: Contest, entry: Entry, ceilings: Ceilings | None) -> Noise:
    """The noise of a contest whose matches are of equals."""
    logs: dict[str, list[list[float]]] = {}
    for match in contest.matches:
        a, b = match.rivals
        times = contest.times(match)
        if times[a] and (name := class_of(entry, a.point, ceilings)):
            logs.setdefault(name, []).append(
                [log(its / own) for own, its in zip(times[a], times[b], strict=True)]
            )
    return {name: (deviation(found), len(found)) for name, found in logs.items()}


def sentences(estimates: Sequence[tuple[Estimate, Verdict]], noise: Noise) -> list[str]:
    """What to say of equal pairs, by their ratios and verdicts."""
    wrong = sum(verdict in ("faster", "slower") for _, verdict in estimates)
    widths = sorted((one.high - one.low) / 2 for one, _ in estimates if isfinite(one.high))
    middle = f"; intervals are ± {widths[len(widths) // 2]:.2%} wide at the median" if widths else ""
    return [
        f"{wrong} of {len(estimates)} equal pairs were called different{middle}.",
        *(
            f"Noise between rounds, {name}-bound kernels: {one:.2%} ({notation.points(count)})."
            for name, (one, count) in noise.items()
        ),
    ]
