"""Does ``kernel_pipeline.ops`` lose anywhere? Measures it at random problems that nobody tuned.

    python -m pipeline.heldout
    python -m pipeline.heldout kernel=[softmax,matmul] problems=100 at_most=9m
    python -m pipeline.heldout draw=20261130 problems=500

Each kernel's YAML lists the values from which problems are drawn; the draw's number is the seed, by default
today's date. At each problem the configuration that a caller of ``kernel_pipeline.ops`` gets is measured in
rounds beside torch's providers and installed peers in their default configurations. Where the caller gets
torch's own provider, the two are equal and only peers are measured. A larger number of problems adds to
those that are measured. The same command continues after an interruption or after ``at_most``.

Prints a line for each kernel and the worst problems, and exits with 1 if the called configuration is slower
than the baseline at any problem, by more than ``by`` and with false discoveries held at 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil, inf
from pathlib import Path
from time import monotonic

from kernel_pipeline import ops
from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.statistics.verdicts import Rule

from . import ROOT
from .command.options import HeldoutConfig
from .command.run import UnsuccessfulError, console, run_stage, say, warn
from .execution.session import Session, build_libraries
from .keys.identity import Identity
from .points import catalog, notation
from .points.catalog import Entry
from .points.drawn import draw
from .points.plan import Target
from .reporting.held_out_tables import kernels_table, losses_table, problem_text
from .reporting.terminal import Progress
from .store import commit, held_out, results, turns
from .store.held_out import HeldOut, summary
from .store.turns import Turn
from .verdicts import rounds
from .verdicts.drawn_problems import Drawn, drawn, judge
from .verdicts.rounds import Match, RoundLimits, Rounds


def run(config: HeldoutConfig) -> None:
    """Measure the drawn problems and print the result. Raises UnsuccessfulError if the called configuration
    is slower than the baseline at a problem."""
    begin = monotonic()
    entries = [catalog.find(name) for name in config.kernel or _drawn_kernels()]
    if alone := [entry.name for entry in entries if entry.name not in ops.names()]:
        raise UserError(f"kernel_pipeline.ops has no {alone[0]}: write one of {', '.join(_drawn_kernels())}.")
    chosen = device.resolve(config.device)
    seed = int(f"{datetime.now(UTC):%Y%m%d}") if config.draw is None else config.draw
    output = results.folder_for(config.output, chosen.kind)
    session = Session(chosen, config.timing.settings, config.seed, config.point_timeout_s, output)
    with DeviceLock(chosen, config.wait_s, warn):
        stage = Stage(config, session, seed, entries)
        try:
            stage.hold(begin + (inf if config.at_most is None else config.at_most))
        finally:
            found = stage.write()
            show(found)
    say(f"Every round's samples and the records are in {output / held_out.FOLDER}.")
    counts = {one.kernel: summary(one.baseline, one.by, one.problems).slower for one in found}
    slower = [f"{name}: {notation.plural(count, 'problem')}" for name, count in counts.items() if count]
    if slower:
        raise UnsuccessfulError(f"slower than the baseline at {'; '.join(slower)}.")


def _drawn_kernels() -> list[str]:
    return [name for name in ops.names() if catalog.find(name).config.drawn]


class Stage:
    """One run on one device."""

    def __init__(self, config: HeldoutConfig, session: Session, seed: int, entries: Sequence[Entry]) -> None:
        self.config, self.session, self.draw, self.entries = config, session, seed, entries
        self.run = commit.new_run()
        target = Target(session.device.kind, device.capabilities(session.device))
        count = ceil(config.problems / len(self.entries))
        self.drawn: list[Drawn] = []
        for entry in self.entries:
            identity = Identity(entry.loaded, session.environment, config.timing.settings, config.seed)
            self.drawn += [
                drawn(entry, problem, session.device.slug, target, identity, session.ceilings)
                for problem in draw(entry, session.device.kind, seed, count)
            ]

    def hold(self, until: float) -> None:
        """Measure the rounds, and write each turn as it comes. No problem is begun after ``until``."""
        config = self.config
        limits = RoundLimits(config.rounds, max(config.rounds, config.most_rounds), until)
        with Progress(console, f"held-out problems on {self.session.device.slug}") as progress:

            def report(turn: Turn) -> None:
                turns.append(self._path(turn.point.kernel), turn)
                progress.advance(f"round {turn.round + 1}: {turn.point}")
                self._drop_failures([turn])

            def prepare(some: Sequence[Match]) -> None:
                build_libraries((one.side.where, one.point) for match in some for one in match.candidates)

            rule = Rule(margin=config.by)
            self.measured = Rounds([], limits, rule, self.run, report, progress.expect, prepare=prepare)
            before = [turn for one in self.entries for turn in turns.read(self._path(one.name), warn)]
            self._drop_failures(before)
            self.measured.know(before)
            rounds.hold([self.measured], self.session)

    def _drop_failures(self, some: Sequence[Turn]) -> None:
        """Compare with the providers that still give times: one that fails at a problem must not leave it
        undecided."""
        last = {turn.key: turn.outcome for turn in some}
        self.drawn = [one.without_failures(last) for one in self.drawn]
        self.measured.matches = [one.match for one in self.drawn if len(one.match.candidates) > 1]

    def _path(self, kernel: str) -> Path:
        return held_out.path(self.session.output, kernel, self.session.device.slug, self.draw)

    def write(self) -> list[HeldOut]:
        """Write and return the record of each kernel."""
        head, _ = commit.head(ROOT)
        judged = judge(self.measured)
        found = []
        for entry in self.entries:
            one = HeldOut(
                kernel=entry.name,
                gpu=self.session.device.slug,
                baseline=entry.loaded.kernel.baseline,
                draw=self.draw,
                run=self.run,
                command=commit.command_line("heldout"),
                commit=None if head == "unknown" else head,
                at=datetime.now(UTC),
                by=self.config.by,
                problems=tuple(
                    each.result(self.measured, judged) for each in self.drawn if each.entry is entry
                ),
            )
            write_atomically(self._path(entry.name).with_suffix(".json"), one.to_json(indent=2) + b"\n")
            found.append(one)
        return found


def show(found: Sequence[HeldOut]) -> None:
    """Print a line for each kernel, and the problems at which another provider wins by most."""
    kernels_table(found).print(console)
    if losses := losses_table(found):
        losses.print(console)
    for one in found:
        for problem in one.problems:
            for provider, why in problem.failed.items():
                say(f"{one.kernel} {provider} at {problem_text(one, problem)}: {why}")


if __name__ == "__main__":
    run_stage("heldout", HeldoutConfig, run)
