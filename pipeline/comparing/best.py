"""Name the best configuration of a kernel at a problem on a GPU, the row behind it, and its call in Python.

If several measured problems fit, each has a line. At a problem that was not measured the answer is the
configuration that ``kernel_pipeline.ops`` calls, the rule behind that, and its times at the nearest problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.machine import device
from kernel_pipeline.problems import values_of
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.point import Point

from .. import as_typed
from ..command.options import ResultsConfig
from ..command.run import console, say, warn
from ..inspection.occupancy import limits_of
from ..keys.old_rows import OldRows
from ..points import notation, plan
from ..points.catalog import SIZE, Entry
from ..reporting import python_call
from ..reporting.best_choice import NEAR, BestChoice, KernelOnMachine, TimedConfiguration, text
from ..reporting.headlines import headline_of
from ..reporting.numbers import RATES, microseconds, number, percent
from ..reporting.tables import TextTable
from ..store import results

MOST = 10
"""The maximum number of configurations within ``NEAR`` of the best that are named; the others are counted."""

WITHIN = f"within {100 * NEAR:.0f} %"

COMMIT = 7


def answer(config: ResultsConfig) -> None:
    """Print the best configuration. Raises UserError for unknown dimensions, problems and machines, and lists
    the known names and values.
    """
    entry = config.entry
    dimensions = [SIZE, *entry.loaded.kernel.dimensions()]
    if others := [name for name in config.pin if name not in dimensions]:
        raise UserError(
            f"{', '.join(others)}: this command finds the parameters itself; leave this option out. "
            f"The dimensions of {entry.name} are {', '.join(dimensions[1:])}."
        )
    pins = plan.checked_pins(entry, config.pin, None)
    there = machines(entry, config.output)
    gpu = chosen_gpu(entry, config, list(there))
    environment = results.read(Environment, results.environment_path(there[gpu], gpu))
    found = KernelOnMachine(entry, there[gpu], environment, limits_of(environment))
    if not found.measured:
        raise UserError(f"{found.ledger} has times only of configurations that {entry.name} no longer has.")
    answers = found.answers(pins)
    if len(answers) == 1:
        tell(found, answers[0])
    else:
        table(found, answers).print(console)
        if not all(one.is_measured for one in answers):
            say("In brackets: times of the same configuration at the nearest measured problem.")
        say("Name one problem by its dimensions to see the row, near configurations, and the call in Python.")
    for sentence in dict.fromkeys(found.heard):
        warn(sentence)


def machines(entry: Entry, folder: Path) -> dict[str, Path]:
    """Return the folder of results of each machine with a ledger of the kernel, GPUs first. Raises UserError
    if there is none."""
    found = {
        path.stem: place
        for place in results.folders_of(folder)
        for path in results.listed(place, f"timings/{entry.name}/*.jsonl", warn)
    }
    if not found:
        raise UserError(
            f"{folder} has no ledger of {entry.name}: measure the kernel by "
            f"{as_typed('sweep', f'kernel={entry.loaded.where}')}, or name another folder by output=."
        )
    return {slug: found[slug] for slug in results.machines_first_gpus(found)}


def chosen_gpu(entry: Entry, config: ResultsConfig, there: Sequence[str]) -> str:
    """Return the machine whose results are read. Raises UserError with the machines that have rows."""
    if config.gpu is not None:
        if config.gpu not in there:
            raise unknown("gpu", config.gpu, there)
        return config.gpu
    own = [one.slug for one in device.gpus()]
    gpus = [slug for slug in there if not slug.startswith("cpu-")] or list(there)
    if own and own[0] in gpus:
        return own[0]
    if own or len(gpus) > 1:
        here = f"This machine's {own[0]} has no rows of {entry.name}" if own else "No GPU is here"
        raise UserError(f"{here}; write gpu=NAME with a machine that has rows: {', '.join(gpus)}.")
    return gpus[0]


def tell(found: KernelOnMachine, best: BestChoice) -> None:
    """Print everything on the best configuration at one problem."""
    say(f"{found.entry.name} {text(values_of(best.problem))} on {found.gpu}")
    lines = {"best": notation.label(best.point)}
    if not best.is_measured:
        lines["chosen by"] = found.why(best)
    if best.measured is None:
        lines["time"] = "not measured at any problem with equal words, such as the dtype"
    else:
        lines |= of_measured(found, best, best.measured)
    if best.is_measured and not best.is_chosen and python_call.has_function(found.entry):
        called = Point(
            kernel=found.entry.name,
            provider=best.chosen.provider,
            problem=best.point.problem,
            parameters=Values(best.chosen.parameters),
        )
        lines["kernel_pipeline.ops"] = f"calls {notation.label(called)}: {found.why(best)}"
    for name, line in lines.items():
        say(f"  {name:<20} {line}")
    say("In Python:\n")
    on = found.environment.kind
    if best.is_chosen and python_call.has_function(found.entry):
        say(python_call.by_function(found.entry, best.problem, on))
    else:
        say(python_call.by_entry(found.entry, best.point, on))
    say("")


def of_measured(found: KernelOnMachine, best: BestChoice, one: TimedConfiguration) -> dict[str, str]:
    """Return the lines on the measurement at the problem or at the nearest problem."""
    row = one.row
    origin = row.origin if one.final is None else one.final.origin
    rate = found.rate(one)
    headline = headline_of(row)
    share = percent(rate.ceiling_fraction) or "not known: no ceiling was measured"
    bound = f", bound by {rate.bound}" if rate.bound else ""
    there = "" if best.is_measured else " there"
    dirty = " with edits" if origin.dirty else ""
    file = found.ledger if one.final is None else found.finals
    key = row.key if one.final is None else one.final.key
    lines = {
        "time": f"{time(one)} by {by(one)}",
        "of ceiling": f"{share}{there}: {number(getattr(rate, headline))} {RATES[headline]}{bound}",
        WITHIN: f"{there} {nearby(best)}".strip(),
        "row": f"key {key} of run {origin.run}, commit {origin.commit[:COMMIT]}{dirty}, "
        f"{origin.measured_at:%Y-%m-%d}: {file}",
    }
    if not best.is_measured:
        lines["time"] = f"not measured; {lines['time']} at {where(best, one)}"
    if best.fastest is not None and best.fastest is not one:
        lines["fastest"] = (
            f"there {best.fastest.label}: {time(best.fastest)}; "
            f"this configuration takes {number(one.over(best.fastest))} times as long"
        )
    if one.doubt:
        lines["not trusted"] = one.doubt
    if old := found.old(row):
        lines["old"] = "; ".join(old)
    return lines


def where(best: BestChoice, one: TimedConfiguration) -> str:
    """Return the nearest problem, and its distance."""
    away = f"{number(best.doublings, 2)} doublings away"
    if best.across:
        away += ", on the other side of the L2 cache"
    return f"{text(one.row.point.problem)}, {away}"


def time(one: TimedConfiguration) -> str:
    """Format a time; an upper bound gets ``at most``."""
    return f"{'at most ' if one.is_bound else ''}{number(one.us)} us"


def by(one: TimedConfiguration) -> str:
    """Return the source of a time."""
    if one.final is None:
        return "the sweep"
    rounds = len(one.final.rounds_us)
    return f"finals ({'one round' if rounds == 1 else f'{rounds} rounds'})"


def nearby(best: BestChoice) -> str:
    """Name the configurations within ``NEAR`` of the best."""
    named = [f"{label} {100 * (ratio - 1):+.1f} %" for label, ratio in best.near[:MOST]]
    if (more := len(best.near) - MOST) > 0:
        named.append(f"and {more} more")
    return ", ".join(named) or "nothing else"


def table(found: KernelOnMachine, answers: Sequence[BestChoice]) -> TextTable:
    """Return a table with a line for each problem. Times in brackets are of the nearest measured problem."""
    rows, old = [], OldRows()
    for best in answers:
        one, how = best.measured, best.chosen.how
        cells = ["", "", ""]
        if one is not None:
            if reasons := found.old(one.row):
                old.add(reasons)
            us = microseconds(one.us, one.is_bound) + "!" * (bool(one.doubt) and not one.is_bound)
            cells = [us, percent(found.rate(one).ceiling_fraction), str(len(best.near))]
            how = by(one).partition(" (")[0] if best.is_measured else how
        if not best.is_measured:
            cells = [f"({cell})" if cell else "" for cell in cells]
        point = best.point
        names = notation.extent(point), notation.words(point), notation.label(point)
        rows.append([*names, *cells, how])
    columns = ("problem", "dtype", "best", "us", "of ceiling", f"others {WITHIN}", "by")
    notes = [f"{old.said()}."] if old.count else []
    return TextTable(f"{found.entry.name} on {found.gpu}", columns, rows, numbers=columns[3:6], notes=notes)
