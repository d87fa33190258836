"""Compare one kernel on one device: pair the points of both sides, measure them in rounds, and report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from kernel_pipeline.files import write_atomically
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.statistics.verdicts import Rule

from ..command.options import CompareConfig
from ..command.run import console, say, warn
from ..execution.session import Session
from ..points import notation
from ..points.catalog import Entry
from ..reporting import comparison
from ..reporting.compared_rounds import compared
from ..reporting.comparison import Compared
from ..reporting.terminal import Progress
from ..store import commit, comparisons, turns
from ..store.comparisons import Comparison
from ..store.turns import Turn
from ..verdicts import code, environments, opponents, rounds
from ..verdicts.opponents import TREE, Files, Named, Pair
from ..verdicts.rounds import Candidate, Fate, Match, RoundLimits, Rounds
from ..verdicts.sides import Answer, Question


class KernelComparison:
    """The comparison of one kernel on one device."""

    def __init__(
        self, config: CompareConfig, session: Session, entry: Entry, sides: tuple[Files, Files]
    ) -> None:
        self.config = config
        self.device = session.device
        self.session = session
        self.entry = entry
        self.sides = sides
        self.a, self.b = (one.named for one in sides)
        self.rule = Rule(margin=config.by / 2)
        self.matches: list[Match] = []
        self.measured_rounds: Rounds | None = None
        self.pairs: list[Pair] = []
        self.extensions: tuple[tuple[str, ...], ...] = ()
        self.broken: list[str] = []
        self.unknown = 0
        self.same_code: Mapping[str, int] = {}
        self.notes: list[str] = []
        self.packages: tuple[dict[str, str], ...] = ({}, {})
        word = "self-test" if config.self_test else f"{self.a.name}..{self.b.name}"
        name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", word)
        self.path = comparisons.path(session.output, entry.name, session.device.slug, name)

    @property
    def is_of_versions(self) -> bool:
        """Whether the sides are versions of the code, so that a change can be a regression."""
        return not self.config.self_test and self.a.variant is None

    @property
    def is_of_environments(self) -> bool:
        """Whether a side is an environment."""
        return "environments" in (self.a.kind, self.b.kind)

    @property
    def title(self) -> str:
        """The title, with the kernel, the device and both sides."""
        if self.config.self_test:
            return f"{self.entry.name} on {self.device.slug}: the working tree with itself"
        return f"{self.entry.name} on {self.device.slug}: a is {self.a.name}, b is {self.b.name}"

    def question(self, named: Named, build: tuple[str, ...] = ()) -> Question:
        """Return the question that asks a side for its points, and to build the providers in ``build``."""
        config, variant = self.config, named.variant
        return Question(
            where=self.entry.loaded.where,
            preset=config.preset.name,
            device=str(self.device),
            settings=config.timing.settings,
            seed=config.seed,
            providers=(variant.provider,) if variant else config.provider,
            pins={**config.pin, **(variant.pins if variant else {})},
            build=build,
            of_packages=self.is_of_environments,
        )

    def pair(self, of_a: Answer, of_b: Answer) -> None:
        """Find the pairs to measure. Raises UserError if two configurations have no problem in common."""
        if self.b.variant:
            pairs = opponents.pairs_of_configurations(self.entry, self.a, of_a, self.b, of_b)
        elif self.config.self_test:
            pairs = opponents.pairs_of_equals(of_a, of_b)
        else:
            pairs, self.notes = opponents.pairs_of_trees(self.a, of_a, self.b, of_b)
        if self.config.language is not None:
            providers = self.entry.loaded.kernel.providers
            written = {one.name for one in providers if one.language in self.config.language}
            pairs = [pair for pair in pairs if pair[1].point.provider in written]
        self.packages = environments.differing(of_a.packages, of_b.packages)
        for name, found in zip("ab", self.packages, strict=True):
            if found:
                self.notes.append(f"{name}: {environments.shown(found)}.")
        self.pairs = pairs if self.config.points is None else opponents.spread(pairs, self.config.points)
        self.extensions = of_a.extensions, of_b.extensions

    def to_build(self, number: int) -> tuple[str, ...]:
        """Return the providers that have to be built on side ``number``: 0 is a, 1 is b."""
        named = {pair[number].point.provider for pair in self.pairs}
        return tuple(name for name in self.extensions[number] if name in named)

    def leave_out(self, number: int, broken: Mapping[str, str]) -> None:
        """Leave out the pairs whose provider could not be built on side ``number``: 0 is a, 1 is b."""
        for provider in {pair[number].point.provider for pair in self.pairs} & broken.keys():
            reason = broken[provider]
            sentence = f"{self.sides[number].named.name}: {provider} was not built: {reason}"
            warn(sentence)
            if number == 1:
                self.broken.append(f"{self.entry.name}: {sentence}")
        left = [pair for pair in self.pairs if pair[number].point.provider not in broken]
        if number == 0:  # b has no counterpart there, so these points stay undecided
            self.unknown += len(self.pairs) - len(left)
        self.pairs = left

    def match(self) -> None:
        """Make the matches to measure of the pairs that are left."""
        a, b = (of.side(self.entry, name) for of, name in zip(self.sides, self._names(), strict=True))
        noise = self.session.ceilings.noise
        for one, other in self.pairs:
            kind = rounds.class_of(self.entry, one.point, self.session.ceilings)
            candidates = Candidate(a, one.point, one.parts.key), Candidate(b, other.point, other.parts.key)
            self.matches.append(Match(candidates, noise.get(kind, 0.0), kind))

    def _names(self) -> tuple[str, str]:
        """Return the names of the sides' processes. Two configurations share a name, and so share a process
        in each round."""
        if self.config.self_test:
            return "a", "b"
        return (TREE, TREE) if self.b.variant else (self.a.name, self.b.name)

    def leave_out_same_code(self, same: Collection[Match]) -> None:
        """Leave out the matches whose sides are known to run the same code on the GPU."""
        left_out = [match for match in self.matches if match in same]
        self.same_code = Counter(match.candidates[0].point.provider for match in left_out)
        self.matches = [match for match in self.matches if match not in same]

    def begin_rounds(self, limits: RoundLimits, progress: Progress) -> Rounds:
        """Return the rounds to hold, with the turns that an earlier run has measured. Each turn is written
        after it is measured."""

        def report(turn: Turn) -> None:
            turns.append(self.path, turn)
            progress.advance(f"round {turn.round + 1}: {turn.point}")

        made = Rounds(self.matches, limits, self.rule, commit.new_run(), report, progress.expect)
        made.know([] if self.config.remeasure else turns.read(self.path, warn))
        self.measured_rounds = made
        if self.matches and not made.lacks():
            say("Nothing to measure: every round was measured. Write remeasure=true to measure again.")
        return made

    def end(self) -> None:
        """Note which points the rounds left open at the time limit, and keep the noise of a self-test."""
        assert self.measured_rounds is not None, "end() comes after the rounds"
        held = self.measured_rounds
        if held.limits.are_over and any(map(held.open, range(held.limits.most))):
            why = "the time limit of at_most= ended the rounds."
            left = sum(not any(held.times(match).values()) for match in held.matches)
            if left:
                were = "was" if left == 1 else "were"
                why = f"{left} of {notation.points(len(held.matches))} {were} not measured: {why}"
            self.notes.append(f"{self.entry.name}: {why}")
        if self.config.self_test:
            ceilings = self.session.ceilings
            noise = {name: found for name, (found, _) in self._noise(held).items()}
            noted = ceilings.replace(noise={**ceilings.noise, **noise})
            write_atomically(self.session.ceilings_path, noted.to_json(indent=2) + b"\n")

    def changed(self) -> list[Match]:
        """Return the match with the largest change for each provider whose compiled code is to be compared:
        for each that became faster or slower, or for all in a comparison of environments."""
        assert self.measured_rounds is not None, "changed() comes after the rounds"
        if self.is_of_versions:
            self.notes += comparison.moved(self.rows(), self.config.by)
        kernel = self.entry.loaded.kernel
        return list(code.most_changed(self.measured_rounds, kernel, self.is_of_environments).values())

    def rows(self) -> list[Compared]:
        """Return the ratio and the verdict of each measured match."""
        return [] if self.measured_rounds is None else compared(self.measured_rounds)

    def worse(self) -> list[str]:
        """Return sentences about the points that are worse in b."""
        words: dict[Fate, str] = {"slower": "slower", "failed": "right in a, and not in b"}
        counts = {name: self.count(name) for name in words}
        found = [f"{self.entry.name}: {notation.points(n)} {words[name]}." for name, n in counts.items() if n]
        return [*found, *self.broken]

    def count(self, fate: Fate) -> int:
        """Return the number of points with this fate."""
        found = self.measured_rounds
        measured = 0 if found is None else found.fates().count(fate)
        return measured + (self.unknown if fate == "undecided" else 0)

    def fates(self) -> set[Fate]:
        """Return the fates of all points. The points of a provider that b can't build count as failed, and
        those of a provider that a can't build as undecided."""
        found: list[Fate] = [] if self.measured_rounds is None else self.measured_rounds.fates()
        if self.broken:
            found.append("failed")
        if self.unknown:
            found.append("undecided")
        return set(found)

    def show(self) -> None:
        """Print the table, the failures, the notes and a summary; write the plot and the ratios."""
        rows = self.rows()
        if self.measured_rounds is None or not (self.measured_rounds.turns or self.same_code):
            for note in self.notes:
                say(note)
            return
        shown = [row for row in rows if row.verdict != "same"] if self.config.self_test else rows
        if self.config.format == "markdown":
            say(f"**{self.title}**\n\n{comparison.table(shown, self.title, self.same_code).markdown()}")
        elif shown or self.same_code:
            comparison.table(shown, self.title, self.same_code).print(console)
        for match in self.measured_rounds.matches:
            if failed := self.measured_rounds.failure(match):
                candidate, outcome = failed
                say(f"{candidate.side.name}: {candidate.point}: {self._failed(candidate, outcome)}")
        for note in self.notes:
            say(note)
        for line in self._summary(self.measured_rounds, rows):
            say(line)
        picture = self.path.with_suffix(".svg")
        write_atomically(picture, comparison.plot(rows, self.title, self.rule.margin))
        found = self.found(rows).to_json(indent=2) + b"\n"
        write_atomically(self.path.with_suffix(".json"), found)
        say(f"Every round's samples: {self.path}; the ratios: {picture}.")

    def found(self, rows: Sequence[Compared]) -> Comparison:
        """Return the comparison's record, which is stored beside its samples."""
        assert self.measured_rounds is not None, "found() comes after hold()"
        head, _ = commit.head(opponents.repository(self.entry))
        sides = [
            comparisons.ComparedSide(name=named.name, commit=named.commit or head, packages=packages)
            for named, packages in zip((self.a, self.b), self.packages, strict=True)
        ]
        return Comparison(
            kernel=self.entry.name,
            gpu=self.device.slug,
            run=self.measured_rounds.run,
            command=commit.command_line("compare"),
            at=datetime.now(UTC),
            a=sides[0],
            b=sides[1],
            by=self.config.by,
            rows=tuple(map(comparison.kept, rows)),
            same_code=dict(self.same_code),
        )

    def _failed(self, candidate: Candidate, outcome: Outcome) -> str:
        """Return in words why a candidate has no usable time."""
        if outcome.status != "verified":
            return f"{outcome.status}: {outcome.error}"
        language = self.entry.loaded.kernel.provider(candidate.point.provider).language
        where = "Numba runs in its simulator" if language == "numba" else "Triton runs under its interpreter"
        return f"right, but not timed, because {where} here"

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
