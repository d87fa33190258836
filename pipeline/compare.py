"""Is b really faster than a? Both are measured side by side, in rounds, until it is known.

    python -m pipeline.compare kernel=softmax a=HEAD~1 b=HEAD
    python -m pipeline.compare kernel=softmax a=main
    python -m pipeline.compare kernel=softmax a=triton_tile/1024x4w b=cuda/1024x8w
    python -m pipeline.compare a=nvidia-h200 b=nvidia-h100-80gb-hbm3
    python -m pipeline.compare kernel=softmax self_test=true

For two commits, the points whose sources differ are measured. The working tree is measured as it is. Prints a
table with each ratio, its interval and the verdict. After an interruption the same command continues.

For two machines nothing is measured. The command compares the results that both left, for one kernel or for
all, and gives no verdict. It says how much of the difference their ceilings explain, and what the best
configuration of one machine costs on the other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from time import monotonic

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.measurement import Launch
from kernel_pipeline.statistics.intervals import Rule
from kernel_pipeline.toolchain.extension import WITHOUT_GPU
from pipeline import ROOT
from pipeline.command.options import CompareConfig
from pipeline.command.run import console, run_stage, say, warn
from pipeline.execution.session import Session
from pipeline.points import notation
from pipeline.points.asked import asked
from pipeline.reporting import comparison, gpus
from pipeline.reporting.comparison import Compared
from pipeline.reporting.terminal import Progress
from pipeline.store import commit, comparisons, results, runs, turns
from pipeline.store.comparisons import Comparison
from pipeline.store.turns import Turn
from pipeline.verdicts import code, opponents, rounds
from pipeline.verdicts.opponents import TREE, Named, Pair
from pipeline.verdicts.rounds import Candidate, Match, RoundLimits, Rounds, medians
from pipeline.verdicts.sides import Answer, Question


def run(config: CompareConfig) -> None:
    """Compare, and print the result."""
    if config.most_rounds < config.rounds:
        raise UserError("most_rounds is less than rounds: write a larger most_rounds=N, or fewer rounds.")
    both = gpus.found(config.a, config.b, (config.output, ROOT / "results"), warn)
    if both is not None:
        show(config, both)
        return
    if config.kernel is None:
        raise UserError(f"kernel is missing: write kernel=NAME with one of {', '.join(loading.names())}.")
    command = Compare(config, device.resolve(config.device))
    with ExitStack() as stack:
        stack.enter_context(DeviceLock(command.device, config.wait_s, warn))
        matches = command.matches(stack)
        try:
            command.hold(matches)
            command.explain()
        except BaseException:
            command.show()
            raise
    command.show()
    if config.tracking.name != "none":
        publish(config)
    if config.fail_on == "slower" and any(row.verdict == "slower" for row in command.rows()):
        sys.exit(1)


def show(config: CompareConfig, both: gpus.Machines) -> None:
    """Print two machines' results side by side, of one kernel or of all that both have. Raises UserError if
    they have none that was asked for."""
    as_markdown = config.format == "markdown"
    if config.kernel is None:
        if config.provider:
            raise UserError("provider= chooses providers of one kernel: write kernel=NAME, too.")
        shown = [both.show(console, name, as_markdown, lambda _: True) for name in both.kernels]
    else:
        wanted = asked(config.entry, config.pin, config.provider)
        shown = [both.show(console, config.entry.name, as_markdown, wanted)]
    if not any(shown):
        of = "" if config.kernel is None else f" of {config.kernel}"
        which = " that these options choose" if config.pin or config.provider else ""
        raise UserError(f"{both.a} and {both.b} have no measured problem{of} in common{which}.")


class Compare:
    """One comparison on one device."""

    def __init__(self, config: CompareConfig, chosen: device.Device) -> None:
        self.config = config
        self.device = chosen
        self.entry = config.entry
        folder = results.folder_for(config.output, chosen.kind)
        self.session = Session(chosen, config.timing.settings, config.seed, config.point_timeout_s, folder)
        self.rule = Rule(margin=config.margin, beyond=config.beyond)
        self.a, self.b = (
            (Named(TREE), Named(TREE)) if config.self_test else opponents.both(self.entry, config.a, config.b)
        )
        self.begin = monotonic()
        self.measured_rounds: Rounds | None = None
        self.notes: list[str] = []
        word = "self-test" if config.self_test else f"{self.a.name}..{self.b.name}"
        name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", word)
        self.path = comparisons.path(folder, self.entry.name, chosen.slug, name)

    @property
    def title(self) -> str:
        """The title: what is compared, and where."""
        if self.config.self_test:
            return f"{self.entry.name} on {self.device.slug}: the working tree with itself"
        return f"{self.entry.name} on {self.device.slug}: a is {self.a.name}, b is {self.b.name}"

    def matches(self, stack: ExitStack) -> list[Match]:
        """Return the matches to measure. Raises UserError if there are none."""
        (a, of_a), (b, of_b) = (
            stack.enter_context(opponents.side(self.entry, named, name, self._question(named)))
            for named, name in zip((self.a, self.b), self._names(), strict=True)
        )
        for name, found in ((a.name, of_a), (b.name, of_b)):
            for provider, reason in found.broken.items():
                warn(f"{name}: {provider} was not built: {reason}")
        pairs = self._pairs(of_a, of_b)
        noise = self.session.ceilings.noise
        matches = []
        for one, other in pairs:
            kind = rounds.class_of(self.entry, one.point, self.session.ceilings)
            candidates = Candidate(a, one.point, one.parts.key), Candidate(b, other.point, other.parts.key)
            matches.append(Match(candidates, noise.get(kind, 0.0), kind))
        return matches

    def _question(self, named: Named) -> Question:
        config, variant = self.config, named.variant
        return Question(
            where=self.entry.loaded.where,
            preset=config.preset.name,
            device=str(self.device),
            settings=config.timing.settings,
            seed=config.seed,
            providers=(variant.provider,) if variant else config.provider,
            pins={**config.pin, **(variant.pins if variant else {})},
        )

    def _pairs(self, of_a: Answer, of_b: Answer) -> list[Pair]:
        if self.b.variant:
            pairs = opponents.pairs_of_configurations(self.entry, self.a, of_a, self.b, of_b)
        elif self.config.self_test:
            pairs = opponents.pairs_of_equals(of_a, of_b)
        else:
            pairs, notes = opponents.pairs_of_trees(self.a, of_a, self.b, of_b)
            self.notes += notes
        return pairs if self.config.points is None else opponents.spread(pairs, self.config.points)

    def _names(self) -> tuple[str, str]:
        """Return the names of the sides. Two configurations share a name, and so one process in each
        round."""
        if self.config.self_test:
            return "a", "b"
        return (TREE, TREE) if self.b.variant else (self.a.name, self.b.name)

    def hold(self, matches: Sequence[Match]) -> None:
        """Measure the rounds, and write each turn as it comes."""
        config, ceilings = self.config, self.session.ceilings
        limits = RoundLimits(config.rounds, config.most_rounds)
        known = [] if config.remeasure else turns.read(self.path, warn)
        with Progress(console, self.title) as progress:

            def report(turn: Turn) -> None:
                turns.append(self.path, turn)
                progress.advance(f"round {turn.round + 1}: {turn.point}")

            measured_rounds = Rounds(matches, limits, self.rule, commit.new_run(), report, progress.expect)
            measured_rounds.know(known)
            self.measured_rounds = measured_rounds
            if not measured_rounds.lacks():
                say("Nothing to measure: every round was measured. Write remeasure=true to measure again.")
            measured_rounds.hold(
                self.device, config.timing.settings, config.seed, config.point_timeout_s, ceilings.canary
            )
        if config.self_test:
            noise = {name: found for name, (found, _) in self._noise(measured_rounds).items()}
            noted = ceilings.replace(noise={**ceilings.noise, **noise})
            write_atomically(self.session.ceilings_path, noted.to_json(indent=2) + b"\n")

    def explain(self) -> None:
        """Add a note on the compiled code of both sides for each provider that became faster or slower, at
        its point with the largest change."""
        assert self.measured_rounds is not None, "what is explained was measured"
        capability = self.session.environment.compute_capability
        architecture = capability.replace(".", "") if capability else WITHOUT_GPU
        for provider, match in code.most_changed(self.measured_rounds, self.entry.loaded.kernel).items():
            with console.status(f"Comparing the compiled code of {provider} …"):
                self.notes += code.explained(match, architecture)

    def rows(self) -> list[Compared]:
        """Return the ratio and the verdict of each match that has rounds."""
        return [] if self.measured_rounds is None else compared(self.measured_rounds)

    def show(self) -> None:
        """Print the table, the failures, the notes and a summary; write the plot and the ratios."""
        rows = self.rows()
        if self.measured_rounds is None or (not rows and not self.measured_rounds.turns):
            return
        shown = [row for row in rows if row.verdict != "same"] if self.config.self_test else rows
        if self.config.format == "markdown":
            say(f"**{self.title}**\n\n{comparison.table(shown, self.title).markdown()}")
        elif shown:
            comparison.table(shown, self.title).print(console)
        for match in self.measured_rounds.matches:
            if failed := self.measured_rounds.failure(match):
                candidate, outcome = failed
                say(f"{candidate.side.name}: {candidate.point}: {outcome.status}: {outcome.error}")
        for note in self.notes:
            say(note)
        for line in self._summary(self.measured_rounds, rows):
            say(line)
        picture = self.path.with_suffix(".svg")
        write_atomically(picture, comparison.plot(rows, self.title, self.config.margin))
        found = self.found(rows).to_json(indent=2) + b"\n"
        write_atomically(self.path.with_suffix(".json"), found)
        say(f"{monotonic() - self.begin:.1f} s. Every round's samples: {self.path}; the ratios: {picture}.")

    def found(self, rows: Sequence[Compared]) -> Comparison:
        """Return the comparison's record, which is stored beside its samples."""
        assert self.measured_rounds is not None, "there are rows once these are rounds"
        head, _ = commit.head(opponents.repository(self.entry))
        sides = [
            comparisons.ComparedSide(name=named.name, commit=named.commit or head)
            for named in (self.a, self.b)
        ]
        return Comparison(
            kernel=self.entry.name,
            gpu=self.device.slug,
            run=self.measured_rounds.run,
            command=commit.command_line("compare"),
            at=datetime.now(UTC),
            a=sides[0],
            b=sides[1],
            margin=self.config.margin,
            beyond=self.config.beyond,
            rows=tuple(map(comparison.kept, rows)),
        )

    def _summary(self, measured_rounds: Rounds, rows: Sequence[Compared]) -> list[str]:
        """Return sentences with counts and means."""
        if not rows:
            return []
        found = [comparison.summary(rows)]
        if self.config.self_test:
            found += rounds.sentences(
                [(row.estimate, row.verdict) for row in rows], self._noise(measured_rounds)
            )
        return found

    def _noise(self, measured_rounds: Rounds) -> rounds.Noise:
        return rounds.noise(measured_rounds, self.entry, self.session.ceilings)


def compared(measured_rounds: Rounds) -> list[Compared]:
    """Return a row for each match that has rounds."""
    estimates, verdicts = measured_rounds.estimates(), measured_rounds.verdicts()
    found = []
    for match in measured_rounds.matches:
        a, b = match.candidates
        if middle := medians(measured_rounds.times(match)):
            last = [[turn.outcome.launch for turn in measured_rounds.timings_of(one)][-1:] for one in (a, b)]
            found.append(
                Compared(
                    problem=f"{notation.extent(a.point)} {notation.words(a.point)}".strip(),
                    a=notation.label(a.point),
                    b=notation.label(b.point),
                    a_us=middle[a],
                    b_us=middle[b],
                    estimate=estimates[match, b],
                    verdict=verdicts[match, b],
                    changed=_changed(*(launches[0] or () if launches else () for launches in last)),
                )
            )
    return found


def _changed(before: Sequence[Launch], after: Sequence[Launch]) -> str:
    """Return the fields of launches that differ: ``block 128 -> 256``."""
    if len(before) != len(after):
        return ""
    changes = [
        f"{name} {_word(getattr(one, name))} -> {_word(getattr(other, name))}"
        for one, other in zip(before, after, strict=True)
        for name in Launch.__struct_fields__
        if getattr(one, name) != getattr(other, name)
    ]
    return ", ".join(dict.fromkeys(changes))


def _word(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def publish(config: CompareConfig) -> None:
    """Log the comparisons of the output to MLflow. All rounds are written before, so that a failing tracker
    loses none."""
    from pipeline.tracking import publisher
    from pipeline.tracking.publisher import Selection, Tracker

    sources = Selection(runs=runs.folder_in(config.output), kernel=config.entry.name, ids=frozenset())
    tracker = Tracker(config.tracking.name, config.tracking.uri)
    published = publisher.publish(sources, tracker, say)
    if published is not None:
        say(publisher.how_to_open(published))


if __name__ == "__main__":
    run_stage("compare", CompareConfig, run)
