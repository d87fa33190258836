"""Carry a ledger's rows over an edit of the instrument that changed no time.

    python -m pipeline.carry kernel=softmax
    python -m pipeline.carry kernel=matmul points=80 rounds=6
    python -m pipeline.carry kernel=softmax margin=0.02

Times some of the points with both instruments, today's and that of the commit which the rows are of, in turn.
Where the two agree, rows that are old by their instrument alone get today's key and say that they were
carried; else nothing changes.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from rich.progress import track

from pipeline import ROOT, UserError
from pipeline.command.options import CarryConfig
from pipeline.command.run import console, run_stage, say, warn
from pipeline.execution import calibration
from pipeline.execution.identity import Identity
from pipeline.execution.supervisor import Supervisor
from pipeline.machine import device
from pipeline.machine.environment import fingerprint
from pipeline.machine.lock import DeviceLock
from pipeline.points import notation
from pipeline.points.frozen import Record
from pipeline.points.point import Point
from pipeline.store import results
from pipeline.store.commit import head
from pipeline.store.environment import Environment
from pipeline.store.evidence import CodeRow, CounterRow, ProfileRow, read_lines, write_lines
from pipeline.store.ledger import Ledger
from pipeline.store.record import Carried, Measurement
from pipeline.store.worktree import worktree
from pipeline.toolchain.extension import Place

SINGLE = 3.0
"""How many times the margin a single point may be off: it is timed in few rounds."""


def run(config: CarryConfig) -> None:
    """Compare the instruments; carry the rows over, or say which points differ."""
    chosen = device.resolve(config.device)
    entry = config.entry
    environment = fingerprint(chosen)
    identity = Identity(entry.loaded, environment, config.timing, config.seed)
    output = results.folder_for(config.output, chosen.kind)
    ledger = Ledger(results.ledger_path(output, entry.name, chosen.slug), warn)
    old = carriable(ledger.rows(), identity)
    if not old:
        say(f"No row of {ledger.path} is old by its instrument alone: nothing to carry.")
        return
    commit, instrument = origin_of(old)
    old = [row for row in old if commit_and_instrument(row) == (commit, instrument)]
    today, dirty = head(ROOT)
    if dirty:
        raise UserError("this tree has been edited: commit it first, so that rows can name what they have.")
    sample = spread(old, config.points)
    with worktree(ROOT, commit) as tree, DeviceLock(chosen, config.wait_s, warn):
        told = instrument_of(tree, chosen.kind, config.timing.timer)
        if told != instrument:
            raise UserError(f"the instrument of commit {commit[:12]} is not the one that the rows are of.")
        place = Place.of(entry.loaded)
        if place.output.is_dir():
            shutil.copytree(place.output, tree / place.output.relative_to(ROOT))
        ratios = compared(config, environment, chosen, tree, [row.point for row in sample])
    verdict = geometric_mean(ratios.values())
    far = {point: ratio for point, ratio in ratios.items() if abs(ratio - 1) > SINGLE * config.margin}
    say(f"{len(ratios)} points by both instruments: new over old {verdict:.4f}.")
    if abs(verdict - 1) > config.margin or 20 * len(far) > len(ratios):
        for point, ratio in far.items():
            warn(f"{notation.label(point)} at {notation.extent(point)} {notation.words(point)}: {ratio:.3f}")
        raise UserError(
            "the instruments differ: nothing was carried; run the sweep to measure the points again."
        )
    carried = Carried(instrument=instrument, commit=commit, to=today, points=len(ratios), ratio=verdict)
    keys = carry(ledger, old, identity.instrument, carried)
    rekey(output, entry.name, chosen.slug, keys)
    say(f"{len(keys)} rows carried over: {ledger.path}.")


def carriable(rows: Sequence[Measurement], identity: Identity) -> list[Measurement]:
    """Those of the rows whose instrument alone is not today's, measured by a commit's own files."""
    known = {provider.name for provider in identity.loaded.kernel.providers}
    return [
        row
        for row in rows
        if row.point.provider in known
        and not row.origin.dirty
        and row.outcome.timing is not None
        and row.parts.measurement
        and row.parts.differences(identity.parts(row.point)) == ["measurement"]
    ]


def origin_of(rows: Sequence[Measurement]) -> tuple[str, str]:
    """The pipeline's commit and the instrument that most of the rows are of."""
    return Counter(map(commit_and_instrument, rows)).most_common(1)[0][0]


def commit_and_instrument(row: Measurement) -> tuple[str, str]:
    """The commit whose instrument a row has, and that instrument."""
    origin = row.origin
    measured = origin.tool or origin.commit
    return origin.carried[-1].to if origin.carried else measured, row.parts.measurement


def spread(rows: Sequence[Measurement], count: int) -> list[Measurement]:
    """So many of the rows, from the shortest to the longest time."""
    ordered = sorted(rows, key=lambda row: row.outcome.timing.median_us if row.outcome.timing else 0.0)
    if len(ordered) <= count:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / max(1, count - 1))] for i in range(count)]


def instrument_of(tree: Path, kind: str, timer: str) -> str:
    """The digest of another tree's instrument, by its own code."""
    asked = f"from pipeline.execution.identity import instrument; print(instrument({kind!r}, {timer!r}))"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tree, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(
            f"the tree of that commit does not tell its instrument: {done.stderr.strip()[-200:]}."
        )
    return done.stdout.strip()


def compared(
    config: CarryConfig, environment: Environment, chosen: device.Device, tree: Path, points: Sequence[Point]
) -> dict[Point, float]:
    """New over old time of each point that both time: the median over the rounds."""
    where = config.entry.loaded.where
    workers = [
        Supervisor(chosen, config.timing, config.seed, config.point_timeout_s, root) for root in (tree, ROOT)
    ]
    logs: dict[Point, list[float]] = {}
    with workers[0], workers[1]:
        # The same for both, so that their own code alone differs.
        path = results.ceilings_path(results.folder_for(config.output, chosen.kind), chosen.slug)
        ceilings = calibration.known_or_measured(workers[1], environment, [path], path)
        for worker in workers:
            worker.overhead = ceilings.overhead
        turns = [(turn, point) for turn in range(config.rounds) for point in points]
        for turn, point in track(
            turns, f"{config.entry.name} by both instruments", console=console, transient=True
        ):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            found = {which: workers[which].measure(where, point) for which in order}
            old, new = found[0].timing, found[1].timing
            if old is None or new is None:
                fates = " and ".join(f"{found[which].status} ({found[which].error})" for which in (0, 1))
                raise UserError(f"{point}: old and new instrument said {fates}: nothing was carried.")
            logs.setdefault(point, []).append(math.log(new.median_us / old.median_us))
    return {point: math.exp(median(of_point)) for point, of_point in logs.items()}


def carry(
    ledger: Ledger, rows: Sequence[Measurement], instrument: str, carried: Carried
) -> Mapping[str, str]:
    """Give the rows today's instrument; their new keys by their old ones."""
    wanted = {row.key for row in rows}
    keys: dict[str, str] = {}

    def change(row: Measurement) -> Measurement:
        if row.key not in wanted:
            return row
        parts = row.parts.model_copy(update={"measurement": instrument})
        keys[row.key] = parts.key
        origin = row.origin.model_copy(update={"carried": (*row.origin.carried, carried)})
        return row.model_copy(update={"key": parts.key, "parts": parts, "origin": origin})

    ledger.compact(change)
    return keys


def rekey(output: Path, kernel: str, gpu: str, keys: Mapping[str, str]) -> None:
    """Let profiles, counters and generated code follow the rows that they belong to."""
    files: tuple[tuple[Path, type[Record]], ...] = (
        (results.profile_path(output, kernel, gpu), ProfileRow),
        (results.counters_path(output, kernel, gpu), CounterRow),
        (results.codegen_path(output, kernel, gpu), CodeRow),
    )
    for path, kind in files:
        if not path.exists():
            continue
        rows = [row.model_dump() for row in read_lines(path, kind, warn)]
        write_lines(
            path, [kind.model_validate({**row, "key": keys.get(row["key"], row["key"])}) for row in rows]
        )


if __name__ == "__main__":
    run_stage("carry", CarryConfig, run)
