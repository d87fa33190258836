"""Play the rule between tuned problems against ledgers: what would it cost not to have measured a shape?

    python -m pipeline.tune_replay
    python -m pipeline.tune_replay kernel=softmax
    python -m pipeline.tune_replay kernel=matmul input=outputs l2_mib=40

Each shape of a ledger is left out in turn, in every dtype, and the rule chooses by the others. The regret is
how much longer its choice takes than the fastest of the ledger there. Beside it are the regrets of what
callers get, by the rule or by a default where that is safer; of the best of the nearest problem alone; of
the best default configuration of any provider; and of the baseline. Nothing is measured. Old rows count as
others do, so that the rule can be judged before a GPU is at hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

import kernels
from kernels.ops import rule
from kernels.ops.tuned import words_text
from pipeline import UserError
from pipeline.command.options import TuneReplayConfig
from pipeline.command.run import console, run_stage, warn
from pipeline.points import catalog
from pipeline.points.catalog import Entry
from pipeline.reporting.numbers import percent, print_wide
from pipeline.store import results
from pipeline.verdicts import regret, tuning
from pipeline.verdicts.regret import Left, Times

SIDES = {True: "within", False: "beyond", None: "both"}
"""Of the L2 cache."""


def run(config: TuneReplayConfig) -> None:
    """Play the rule and print a table for each ledger. Raises UserError where there is none."""
    played = False
    for where in config.kernel or kernels.names():
        entry = catalog.find(where)
        for ledger in results.listed(config.input, f"timings/{entry.name}/*.jsonl", warn):
            some = tuning.measured(entry, results.own_rows(ledger, warn), None)
            if some:
                times = tuning.times_of(entry, some, int(config.l2_mib * 2**20))
                print_wide(console, compared(entry, times, f"{entry.name} on {ledger.stem}: regret"))
                played = True
    if not played:
        raise UserError(
            f"{config.input} has no ledger of a kernel that was asked for; measure one by "
            "python -m pipeline.sweep, or name its folder by input=."
        )


def compared(entry: Entry, times: Sequence[Times], title: str) -> Table:
    """The regrets of the rule beside those of other ways, on both sides of the L2 cache."""
    made = Table(title=title, box=box.SIMPLE_HEAD)
    for name in ("L2 cache", "way", "problems", "median", "90th percentile", "largest"):
        made.add_column(name, justify="left" if name in ("L2 cache", "way") else "right")
    size = entry.loaded.kernel.size
    by_rule, by_nearest = (regret.leave_out(times, size, count) for count in (rule.NEIGHBOURS, 1))
    for side, shown in SIDES.items():
        here = [one for one in times if side in (None, one.tuned.within_l2)]
        chosen = [one for one in by_rule if side in (None, one.times.tuned.within_l2)]
        nearest = [one for one in by_nearest if side in (None, one.times.tuned.within_l2)]
        trusted = regret.up_to(chosen) if side is not None else []
        ways = {
            "what is called": called(entry, times, by_rule, side),
            "rule": regrets(chosen),
            "rule where it is trusted": regrets(trusted),
            "nearest alone": regrets(nearest),
            "best default": by_default(entry, here),
            "baseline": by_provider(entry, here),
        }
        for way, those in ways.items():
            if those:
                shares = [percent(regret.quantile(those, share)) for share in (0.5, 0.9, 1.0)]
                made.add_row(shown, way, str(len(those)), *shares)
    return made


def called(entry: Entry, times: Sequence[Times], by_rule: Sequence[Left], side: bool | None) -> list[float]:
    """Of what callers get on a side of the cache, on both if that is None: the rule's choice where it is
    trusted, or safer than the safest default that fits."""
    if side is None:
        return [share for one in (True, False) for share in called(entry, times, by_rule, one)]
    here = [one for one in times if one.tuned.within_l2 == side]
    chosen = [one for one in by_rule if one.times.tuned.within_l2 == side]
    if not chosen:
        return []
    region = regret.region(side, here, chosen, entry.loaded.kernel.baseline)
    found = []
    for one in chosen:
        is_trusted = region.distance is not None and one.pick.distance <= region.distance
        known = region.fallback[words_text(one.times.tuned.problem)]
        safest = next((label for label in known if label in one.times.us), None)
        if is_trusted or (safest is not None and region.is_safer(known[safest])):
            found.append(one.regret)
        elif safest is not None:
            found.append(one.times.regret(safest))
    return found


def regrets(some: Sequence[Left]) -> list[float]:
    """Of the choices."""
    return [one.regret for one in some]


def by_default(entry: Entry, some: Sequence[Times]) -> list[float]:
    """Of the safest default that was measured at each problem, the baseline among them."""
    safest = regret.safest(some, entry.loaded.kernel.baseline)
    chosen = [(one, next((label for label in safest if label in one.us), None)) for one in some]
    return [one.regret(label) for one, label in chosen if label is not None]


def by_provider(entry: Entry, some: Sequence[Times]) -> list[float]:
    """Of the baseline."""
    name = entry.loaded.kernel.baseline
    return [one.regret(name) for one in some if name in one.us]


if __name__ == "__main__":
    run_stage("tune_replay", TuneReplayConfig, run)
