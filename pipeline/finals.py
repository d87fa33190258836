"""Stage ``finals``: measure the best configuration of each provider again, side by side.

    python -m pipeline.finals kernel=softmax
    python -m pipeline.finals kernel=[gelu,softmax] preset=standard
    python -m pipeline.finals output=results remeasure=true
    python -m pipeline.finals kernel=softmax workload=between

The best of many configurations in a sweep is partly luck, and the rows of a ledger may be days apart. Finals
therefore measure each problem's providers one after the other, in fresh processes, round after round. One
process serves the problems of all kernels. After an interruption the same command continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from statistics import geometric_mean
from time import monotonic

from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.extra_readings import Extra
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine import device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.measurement import Origin
from kernel_pipeline.statistics.verdicts import Rule

from . import as_typed
from .command.options import FinalsConfig
from .command.run import console, run_stage, say, warn
from .execution.session import Session, build_libraries
from .keys import identity
from .keys.identity import Identity
from .keys.old_rows import OldRows, reasons
from .points import catalog
from .points.catalog import Entry
from .points.notation import plural
from .points.plan import Target, plan
from .reporting.summary import finals_table
from .reporting.terminal import Progress
from .store import commit, finals, provenance, results, turns
from .store.finals import Final
from .store.provenance import RunProvenance
from .store.rows_that_count import own_rows
from .store.turns import Turn
from .verdicts import finalists, rounds
from .verdicts.finalists import Finalists, NobodyError
from .verdicts.ranking import Ranking
from .verdicts.rounds import Candidate, Match, RoundLimits, Rounds

WORK_S = 2.0
"""Seconds of the same work before a sustained time: an H200's power limit takes that long to lower its
clock."""

LONG_US = 100.0
"""Only kernels longer than this get sustained times: a shorter kernel seldom runs alone for seconds."""


def run(config: FinalsConfig) -> None:
    """Measure the finals and print them."""
    entries = [catalog.find(name) for name in config.kernel or catalog.names()]
    chosen = device.resolve(config.device)
    output = results.folder_for(config.output, chosen.kind)
    session = Session(chosen, config.timing.settings, config.seed, config.point_timeout_s, output)
    with DeviceLock(chosen, config.wait_s, warn), session.supervisor(in_turns=True) as first:
        if chosen.kind == "cuda":
            first.launch()  # it imports torch while finalists are chosen
        stage = Finals(config, session, entries)
        stage.choose()
        try:
            stage.hold(first)
        finally:
            stage.show()


class Finals:
    """One run of finals on one device."""

    def __init__(self, config: FinalsConfig, session: Session, entries: Sequence[Entry]) -> None:
        self.config = config
        self.session = session
        self.device = session.device
        self.slug = session.device.slug
        self.entries = entries
        self.output = session.output
        self.run = commit.new_run()
        self.command = commit.command_line("finals")
        self.begin = monotonic()
        self.finalists: dict[Match, Finalists] = {}
        self.measured_rounds: Rounds | None = None
        self.left_out: list[str] = []
        self.written = 0  # finals that are in the files
        self.changes: dict[str, str] = {}  # why a worker was replaced after it answered, by provider
        for entry in entries:
            results.asked_for(finals.path(config.output, entry.name, self.slug))

    def choose(self) -> None:
        """Choose the finalists of each problem, by the ledgers. Raises UserError if there are none."""
        target = Target(self.device.kind, device.capabilities(self.device))
        preset = self.config.preset
        missed: list[tuple[Entry, NobodyError]] = []
        for entry in self.entries:
            ledger = results.ledger_path(self.output, entry.name, self.slug)
            identity = Identity(
                entry.loaded, self.session.environment, self.config.timing.settings, self.config.seed
            )
            wanted = plan(entry, preset.name, target, written=self.config.workload)
            rows = own_rows(ledger, warn)
            closer = preset.closer if self.config.workload is None else "all"
            near = preset.near if self.config.workload is None else None
            try:
                found = finalists.of_ledger(
                    entry, wanted, closer, rows, identity, self.session.ceilings, target.gpu, near
                )
            except NobodyError as error:
                old = OldRows()
                runs = provenance.read(provenance.beside(ledger))
                for row in rows:
                    if changed := reasons(row, identity, runs):
                        old.add(changed)
                clause = "; ".join(filter(None, [str(error), old.said()]))
                missed.append((entry, NobodyError(clause, elsewhere=error.elsewhere)))
            else:
                self.finalists |= {one.match: one for one in found}
        self.left_out = [f"{entry.name}: {why}." for entry, why in missed]
        if not self.finalists:
            output = f"output={self.config.output}"
            for entry, why in missed:
                if why.elsewhere:
                    of_kernel = f"kernel={entry.loaded.where}"
                    sweep = as_typed("sweep", of_kernel, f"preset={preset.name}", output)
                    raise UserError(f"{entry.name}: {why}; run {sweep} first.")
            name = self.entries[0].loaded.where if len(self.entries) == 1 else "NAME"
            sweep = as_typed("sweep", f"kernel={name}", output)
            raise UserError(
                f"no ledger in {self.output} has times from which finalists could be chosen: "
                f"run {sweep} first."
            )

    def hold(self, first: Supervisor) -> None:
        """Measure the rounds, write each turn as it comes, and write the finals. ``first`` holds the
        processes of the first round."""
        config = self.config
        least = config.rounds or config.preset.rounds
        limits = RoundLimits(least, max(least, config.most_rounds or config.preset.most_rounds))
        with Progress(console, f"finals on {self.slug}") as progress:

            def report(turn: Turn) -> None:
                turns.append(finals.rounds_path(self.output, turn.point.kernel, self.slug), turn)
                progress.advance(f"round {turn.round + 1}: {turn.point}")

            measured_rounds = Rounds(
                tuple(self.finalists),
                limits,
                Rule(margin=config.margin),
                self.run,
                report,
                progress.expect,
                self._extra,
                self._build,
            )
            if not config.remeasure:
                for entry in self.entries:
                    measured_rounds.know(
                        turns.read(finals.rounds_path(self.output, entry.name, self.slug), warn)
                    )
            self.measured_rounds = measured_rounds
            try:
                rounds.hold([measured_rounds], self.session, {finalists.TREE: first})
            finally:
                self.write()

    def _build(self, matches: Sequence[Match]) -> None:
        """Build the libraries of the providers that a round measures. Raises UserError if one can't be
        built."""
        build_libraries((one.side.where, one.point) for match in matches for one in match.candidates)

    def _extra(self, worker: Supervisor, match: Match, candidate: Candidate, turn: Turn) -> Extra:
        """Read a finalist's accuracy in the first round. In the preset's ``lasting`` rounds, also time a long
        kernel that the power limit may slow down after seconds of work."""
        is_long = turn.outcome.timing is not None and turn.outcome.timing.median_us > LONG_US
        lasting = (
            is_long
            and turn.round < self.config.preset.lasting
            and self.device.kind == "cuda"
            and candidate in self.finalists[match].power_limited(self.session.ceilings)
        )
        found = Extra()
        if turn.round == 0 or lasting:
            found = worker.extra(candidate.side.where, candidate.point, WORK_S if lasting else None)
        self.changes |= worker.changes
        return found

    def write(self) -> None:
        """Append the finals of each match whose rounds the file lacks."""
        assert self.measured_rounds is not None, "finals are held before they are written"
        rows = self.rows()
        for entry in self.entries:
            path = finals.path(self.output, entry.name, self.slug)
            known = {
                (row.key, row.power, row.rounds_us) for row in finals.of_last_run(finals.read(path, warn))
            }
            new = [
                row
                for match, of_match in rows.items()
                if self.finalists[match].entry is entry
                and any((row.key, row.power, row.rounds_us) not in known for row in of_match)
                for row in of_match
            ]
            if new:
                finals.append(path, new, self.provenance)
            self.written += sum(
                len(some) for match, some in rows.items() if self.finalists[match].entry is entry
            )

    def rows(self) -> dict[Match, list[Final]]:
        """Return the finals of each match that has rounds."""
        assert self.measured_rounds is not None, "finals were held"
        return Ranking(self.measured_rounds, self.finalists, self.session.ceilings, self._origin).rows()

    @cached_property
    def provenance(self) -> RunProvenance:
        """The provenance that all rows of this run share."""
        timing, seed, environment = self.config.timing.settings, self.config.seed, self.session.environment
        identities = [Identity(entry.loaded, environment, timing, seed) for entry in self.entries]
        for why in identity.unknown_commits(identities):
            warn(why)
        return identity.run_here(self.run, self.command, environment, [self.device], identities)

    def _origin(self, entry: Entry) -> Origin:
        return self.provenance.origin(entry.name, datetime.now(UTC), str(self.device))

    def show(self) -> None:
        """Print the finals: the fastest own provider at each problem, beside torch and the fastest other
        provider."""
        if self.measured_rounds is None:
            return
        rows = self.rows()
        if rows:
            finals_table(list(rows.values()), f"finals on {self.slug}").print(console)
        for match in self.measured_rounds.matches:
            if failed := self.measured_rounds.failure(match):
                candidate, outcome = failed
                say(f"{candidate.point}: {outcome.status}: {outcome.error}")
        for provider, what in self.changes.items():
            warn(f"{provider} changed its worker process, so the process was replaced: {what}.")
        for line in self.left_out:
            say(line)
        if said := closing(rows):
            say(said)
        if biases := [row.median_us / row.swept_us for some in rows.values() for row in some]:
            say(
                f"The finals' times are {geometric_mean(biases):.4f} times the sweeps' times at the "
                "same points."
            )
        count = sum(map(len, rows.values()))
        they = "They" if self.written == count else f"{self.written} of them"
        where = f" {they} are in {self.output / 'finals'}." if count else ""
        say(f"{len(rows)} problems, {count} finalists, {monotonic() - self.begin:.1f} s.{where}")


def closing(rows: Mapping[Match, Sequence[Final]]) -> str:
    """Return sentences that compare, for each way of choosing, the configurations that callers get with our
    fastest configurations."""
    ratios: dict[str, list[float]] = {}
    for some in rows.values():
        for row in some:
            if row.dispatched and row.power == "burst":
                ratios.setdefault(row.dispatched, []).append(
                    1.0 if row.against is None else row.against.ratio
                )
    parts = [
        f"{how}, {plural(len(those), 'problem')}, {geometric_mean(those):.3f}"
        for how, those in sorted(ratios.items())
    ]
    return (
        f"The configuration that callers get, its time over our fastest: {'; '.join(parts)}." if parts else ""
    )


if __name__ == "__main__":
    run_stage("finals", FinalsConfig, run)
