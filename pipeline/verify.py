"""Measure a sample of this machine's rows again, and print how many times were reproduced.

    python -m pipeline.verify
    python -m pipeline.verify kernel=[softmax,gelu] points=20
    python -m pipeline.verify margin=0.1 share=0.5
    python -m pipeline.verify points=180 note=true

Takes the rows of this machine's GPU in results/, or of its CPU in local/results. Only fresh rows are measured
again: their key equals the current key of their point. Old rows are counted, with what has changed since. The
command says how many times come out within the margin, and how many within the 90 % interval of their row. It
exits with 1 if a smaller share of the sample than ``share`` is reproduced, and with 2 if no row can be
verified. After an interruption it reports on the rows that were measured until then.

No row is written to results. With note=true the command writes the spread that another process, GPU or host
adds to a time into the file of ceilings. From then on the interval of every row includes this spread.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.execution.compile_pool import built
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.settings import TimingSettings

from . import as_typed
from .command.options import VerifyConfig
from .command.run import console, run_stage, say, warn
from .execution.session import Session
from .keys.identity import Identity, settings_beside
from .keys.old_rows import OldRows, reasons
from .points import catalog, notation
from .points.catalog import Entry
from .reporting.numbers import number, percent
from .reporting.tables import TextTable
from .reporting.terminal import Progress
from .store import provenance, results, spread
from .store.rows_that_count import own_rows
from .verdicts.sampling import SampledRow, by_provider, sample

SWEPT = Path("outputs")
"""The folder that sweeps write to by default."""


@dataclass
class Stock:
    """The content of the ledgers: the fresh rows, the old rows with the reasons, and the number of fresh rows
    that are marked as doubtful."""

    fresh: list[SampledRow] = field(default_factory=list)
    old: OldRows = field(default_factory=OldRows)
    distrusted: int = 0

    def left_out(self) -> str:
        """Say how many rows can't be verified; empty if all can."""
        found = []
        if self.old.count:
            found.append(self.old.said())
        if self.distrusted:
            found.append(f"{_are(self.distrusted, 'row')} marked as not to be trusted")
        return "; ".join(found)


@dataclass(frozen=True)
class RemeasuredRow:
    """A row, and the outcome of measuring its point again."""

    candidate: SampledRow
    outcome: Outcome

    @property
    def ratio(self) -> float | None:
        """The new time over the row's; None if there is no new time."""
        timing = self.outcome.timing
        return None if timing is None else timing.median_us / self.candidate.us

    @property
    def is_trusted(self) -> bool:
        """Whether the outcome is to be trusted."""
        return self.outcome.state is None or self.outcome.state.valid

    def is_in_interval(self, added: Mapping[str, float]) -> bool:
        """Whether the new time is to be trusted and lies in the row's 90 % interval, widened by ``added``."""
        before, timing = self.candidate.row.outcome.timing, self.outcome.timing
        if before is None or timing is None or not self.is_trusted:
            return False
        low, high = spread.interval_us(before, added)
        return low <= timing.median_us <= high

    def is_reproduced(self, margin: float) -> bool:
        """Whether the new time is to be trusted and differs from the row's by no more than the margin."""
        return self.is_trusted and self.ratio is not None and abs(self.ratio - 1) <= margin

    @property
    def remark(self) -> str:
        """The reason why there is no new time, or why it is not to be trusted."""
        state = self.outcome.state
        if state is not None and not state.valid:
            return state.invalid_reason or "not to be trusted"
        return "" if self.outcome.timing else f"{self.outcome.status}: {self.outcome.error}"


def run(config: VerifyConfig) -> None:
    """Choose the sample, measure it again, and print the share that was reproduced."""
    chosen = device.resolve(config.device)
    entries = [catalog.find(name) for name in config.kernel or catalog.names()]
    known = {provider.name for entry in entries for provider in entry.loaded.kernel.providers}
    for name in config.provider or ():
        if name not in known:
            raise unknown("provider", name, sorted(known))
    begin = monotonic()
    with DeviceLock(chosen, config.wait_s, warn):
        environment = fingerprint(chosen)
        folder = results.folder_for(config.input, chosen.kind)
        path = results.ceilings_path(folder, chosen.slug)
        ceilings = results.read(Ceilings, path) if path.exists() else None
        if config.note and ceilings is None:
            raise UserError(
                f"{path} does not exist: run {as_typed('benchmarks', 'ceilings')} first, then note=true."
            )
        stock = Stock()
        for entry in entries:
            look(entry, environment, results.ledger_path(folder, entry.name, chosen.slug), config, stock)
        if not stock.fresh:
            raise UserError(nothing_to_verify(stock, folder, chosen, [entry.name for entry in entries]))
        drawn = sample(stock.fresh, config.points, config.sample_seed)
        found: list[RemeasuredRow] = []
        added = {} if ceilings is None else ceilings.spread

        def tell() -> int:
            show(found, config, f"{len(stock.fresh)} fresh rows of {chosen.slug}", monotonic() - begin)
            if left_out := stock.left_out():
                say(f"{left_out}, and could not be verified.")
            return reproduced(found, config.margin, added, chosen)

        try:
            measure(drawn, chosen, environment, folder, config, found)
        except KeyboardInterrupt:
            if found:
                tell()
            raise
    count = tell()
    if config.note and ceilings is not None:
        note(found, ceilings, path)
    if count < config.share * len(found):
        warn(f"That is less than share={config.share:g} of the sample.")
        sys.exit(1)


def reproduced(
    found: Sequence[RemeasuredRow], margin: float, added: Mapping[str, float], chosen: Device
) -> int:
    """Print how many times came out the same within the margin, and how many within their intervals. Returns
    the number within the margin."""
    count = sum(one.is_reproduced(margin) for one in found)
    inside = sum(one.is_in_interval(added) for one in found)
    say(
        f"reproduced: {count} of {len(found)} within {percent_of(margin)}, "
        f"{inside} in the 90 % interval of their row; {whose(found, chosen)}."
    )
    return count


def whose(found: Sequence[RemeasuredRow], chosen: Device) -> str:
    """Say whether this very GPU measured the rows."""
    if chosen.kind == "cpu":
        return "all of this host"
    known = {one.candidate.gpu for one in found} - {None}
    own = provenance.hashed(chosen.uuid)
    if not known:
        return "it is not known which GPU of this model measured them"
    if known == {own}:
        return "measured by this GPU"
    return "measured by another GPU of the model" if own not in known else "measured by this and another GPU"


def note(found: Sequence[RemeasuredRow], ceilings: Ceilings, path: Path) -> None:
    """Write the spread that another process, GPU or host adds to a time into the file of ceilings."""
    trusted = (one for one in found if one.is_trusted)
    timed = ((one.candidate.row.outcome.timing, one.outcome.timing) for one in trusted)
    added = spread.found(
        (before, after) for before, after in timed if before is not None and after is not None
    )
    if not added:
        say(f"Nothing noted: no class of durations has {spread.FEWEST} trusted times.")
        return
    noted = ceilings.replace(spread={**ceilings.spread, **added})
    write_atomically(path, noted.to_json(indent=2) + b"\n")
    say(f"Noted in {path}: {', '.join(f'{100 * one:.2g} % ({name})' for name, one in added.items())}.")


def look(entry: Entry, environment: Environment, ledger: Path, config: VerifyConfig, stock: Stock) -> None:
    """Add the timed rows of one kernel's ledger to the stock. Raises UserError if the file beside the ledger
    with its settings is missing."""
    rows = [
        row
        for row in own_rows(ledger, warn)
        if row.outcome.timing is not None and row.point.provider in (config.provider or [row.point.provider])
    ]
    if not rows:
        return
    settings = settings_beside(ledger)
    if settings is None:
        again = as_typed("sweep", f"kernel={entry.loaded.where}", f"output={config.input}")
        raise UserError(
            f"{ledger.with_suffix('.yaml')} does not have the settings of {ledger.name}; "
            f"run {again} to write it again."
        )
    identity = Identity(entry.loaded, environment, *settings)
    runs = provenance.read(provenance.beside(ledger))
    for row in rows:
        state = row.outcome.state
        if why := reasons(row, identity, runs):
            stock.old.add(why)
        elif state is not None and not state.valid:
            stock.distrusted += 1
        else:
            run = runs.get(row.origin.run)
            gpu = None if run is None else run.devices.get(row.origin.device)
            stock.fresh.append(SampledRow(row, entry, *settings, gpu=gpu))


def nothing_to_verify(stock: Stock, folder: Path, chosen: Device, kernels: Sequence[str]) -> str:
    """Say why there is no row to measure again, and where a sweep has written some."""
    if left_out := stock.left_out():
        return f"no row of {chosen.slug} can be verified: {left_out}. Run make repro to measure them again."
    none = f"{folder} has no times of {chosen.slug} that can be verified."
    if any(results.ledger_path(SWEPT, name, chosen.slug).exists() for name in kernels):
        return f"{none} {SWEPT} has some: write input={SWEPT}."
    return f"{none} Run make repro to measure some."


def measure(
    drawn: Sequence[SampledRow],
    chosen: Device,
    environment: Environment,
    folder: Path,
    config: VerifyConfig,
    found: list[RemeasuredRow],
) -> None:
    """Measure the points of the rows again, each with its row's settings, and append the results to
    ``found``."""
    by_settings: dict[tuple[TimingSettings, int], list[SampledRow]] = defaultdict(list)
    for one in sorted(drawn, key=by_provider):
        by_settings[one.timing, one.seed].append(one)
    broken = built((one.entry.loaded, one.row.point.provider) for one in drawn)
    with Progress(console, f"rows of {chosen.slug}", len(drawn)) as progress:
        for (timing, seed), some in by_settings.items():
            with tempfile.TemporaryDirectory() as scratch:
                # Unknown ceilings are measured into a scratch folder, because the canary needs them.
                session = Session(chosen, timing, seed, config.point_timeout_s, Path(scratch), (folder,))
                canary = session.canary
                with session.supervisor(heeds_load=True) as worker:
                    worker.canary = canary
                    for one in some:
                        point = one.row.point
                        outcome = broken.get((one.entry.name, point.provider))
                        outcome = outcome or worker.measure(one.entry.loaded.where, point)
                        found.append(RemeasuredRow(one, outcome))
                        progress.advance(str(point))


def show(found: Sequence[RemeasuredRow], config: VerifyConfig, stock: str, seconds: float) -> None:
    """Print the rows that were not reproduced, and describe the sample."""
    if rest := [one for one in found if not one.is_reproduced(config.margin)]:
        table(rest).print(console)
    points = [one.candidate.row.point for one in found]
    times = [one.candidate.us for one in found]
    say(
        f"{len(found)} of {stock} were measured again in {seconds:.1f} s: "
        f"{notation.plural(len({point.kernel for point in points}), 'kernel')}, "
        f"{notation.plural(len({(point.kernel, point.provider) for point in points}), 'provider')}, "
        f"{number(min(times))} to {number(max(times))} us."
    )
    if doubtful := sum(not one.is_trusted for one in found):
        say(
            f"{_are(doubtful, 'new time')} not to be trusted: "
            "run the command again when the machine is quiet."
        )


def table(rest: Sequence[RemeasuredRow]) -> TextTable:
    """Return a table of the rows that were not reproduced: the largest deviation first, rows without a new
    time last."""
    lines = []
    for one in sorted(rest, key=lambda one: -abs((one.ratio or 1.0) - 1)):
        point, timing, state = one.candidate.row.point, one.outcome.timing, one.candidate.row.outcome.state
        named = [point.kernel, notation.extent(point), notation.words(point), notation.label(point)]
        times = [number(one.candidate.us), number(timing.median_us if timing else None), number(one.ratio)]
        lines.append([*named, *times, percent(state.noise_floor if state else None), one.remark])
    columns = ("kernel", "problem", "dtype", "provider", "was us", "is us", "ratio", "noise floor", "")
    return TextTable("not reproduced", columns, lines, numbers=("problem", *columns[4:8]))


def percent_of(margin: float) -> str:
    """Format a margin as a percentage: 2 %, 0.5 %."""
    return f"{100 * margin:g} %"


def _are(count: int, what: str) -> str:
    return f"{notation.plural(count, what)} {'is' if count == 1 else 'are'}"


if __name__ == "__main__":
    run_stage("verify", VerifyConfig, run)
