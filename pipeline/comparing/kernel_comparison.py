"""Compare one kernel on one device: pair the points of both sides, measure them in rounds, and report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic

from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.statistics.verdicts import Rule
from kernel_pipeline.toolchain.extension import WITHOUT_GPU

from ..command.options import CompareConfig
from ..command.run import console, say, warn
from ..execution.session import Session
from ..inspection import device_code
from ..points import notation
from ..points.catalog import Entry
from ..reporting import comparison
from ..reporting.compared_rounds import compared
from ..reporting.comparison import Compared
from ..reporting.terminal import Progress
from ..store import commit, comparisons, results, turns
from ..store.comparisons import Comparison
from ..store.turns import Turn
from ..verdicts import code, environments, opponents, rounds
from ..verdicts.opponents import TREE, Files, Named, Pair
from ..verdicts.rounds import Candidate, Fate, Match, RoundLimits, Rounds
from ..verdicts.sides import Answer, Question


class KernelComparison:
    """The comparison of one kernel on one device."""

    def __init__(
        self, config: CompareConfig, chosen: device.Device, entry: Entry, sides: tuple[Files, Files]
    ) -> None:
        self.config = config
        self.device = chosen
        self.entry = entry
        self.sides = sides
        self.a, self.b = (one.named for one in sides)
        folder = results.folder_for(config.output, chosen.kind)
        self.session = Session(chosen, config.timing.settings, config.seed, config.point_timeout_s, folder)
        self.rule = Rule(margin=config.by / 2)
        self.begin = monotonic()
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
        self.path = comparisons.path(folder, entry.name, chosen.slug, name)

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

    def run(self, until: float) -> None:
        """Measure the pairs in rounds that begin before ``until``, a time of ``monotonic()``. Prints the
        result, also after an interruption."""
        try:
            matches = self.matches()
            if self.device.kind == "cuda" and self.config.same_code == "skip" and self.is_of_versions:
                matches = self.without_same_code(matches)
            self.hold(matches, until)
            self.explain()
        finally:
            self.show()

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
        for provider, reason in broken.items():
            sentence = f"{self.sides[number].named.name}: {provider} was not built: {reason}"
            warn(sentence)
            if number == 1:
                self.broken.append(f"{self.entry.name}: {sentence}")
        left = [pair for pair in self.pairs if pair[number].point.provider not in broken]
        if number == 0:  # b has no counterpart there, so these points stay undecided
            self.unknown += len(self.pairs) - len(left)
        self.pairs = left

    def matches(self) -> list[Match]:
        """Return the matches to measure."""
        a, b = (of.side(self.entry, name) for of, name in zip(self.sides, self._names(), strict=True))
        noise = self.session.ceilings.noise
        matches = []
        for one, other in self.pairs:
            kind = rounds.class_of(self.entry, one.point, self.session.ceilings)
            candidates = Candidate(a, one.point, one.parts.key), Candidate(b, other.point, other.parts.key)
            matches.append(Match(candidates, noise.get(kind, 0.0), kind))
        return matches

    def _names(self) -> tuple[str, str]:
        """Return the names of the sides' processes. Two configurations share a name, and so share a process
        in each round."""
        if self.config.self_test:
            return "a", "b"
        return (TREE, TREE) if self.b.variant else (self.a.name, self.b.name)

    def without_same_code(self, matches: Sequence[Match]) -> list[Match]:
        """Return the matches without those whose sides are known to run the same code on the GPU."""
        with console.status("Comparing the machine code of both sides …"):
            same = device_code.same(matches, self.entry.loaded.kernel, str(self.device), self.config.seed)
        self.same_code = Counter(match.candidates[0].point.provider for match in same)
        return [match for match in matches if match not in same]

    def hold(self, matches: Sequence[Match], until: float) -> None:
        """Measure the rounds, and write each turn after it is measured."""
        config, ceilings = self.config, self.session.ceilings
        limits = RoundLimits(config.rounds, config.most_rounds, until)
        known = [] if config.remeasure else turns.read(self.path, warn)
        with Progress(console, self.title) as progress:

            def report(turn: Turn) -> None:
                turns.append(self.path, turn)
                progress.advance(f"round {turn.round + 1}: {turn.point}")

            measured_rounds = Rounds(matches, limits, self.rule, commit.new_run(), report, progress.expect)
            measured_rounds.know(known)
            self.measured_rounds = measured_rounds
            if matches and not measured_rounds.lacks():
                say("Nothing to measure: every round was measured. Write remeasure=true to measure again.")
            measured_rounds.hold(
                self.device, config.timing.settings, config.seed, config.point_timeout_s, ceilings.canary
            )
        if limits.are_over:
            self.notes.append("The rounds ended at the time limit of at_most=.")
        if config.self_test:
            noise = {name: found for name, (found, _) in self._noise(measured_rounds).items()}
            noted = ceilings.replace(noise={**ceilings.noise, **noise})
            write_atomically(self.session.ceilings_path, noted.to_json(indent=2) + b"\n")

    def explain(self) -> None:
        """Add a note for each provider that became faster or slower, or for all in a comparison of
        environments. The note compares the compiled code of both sides at the point with the largest change.
        """
        assert self.measured_rounds is not None, "explain() comes after hold()"
        capability = self.session.environment.compute_capability
        architecture = capability.replace(".", "") if capability else WITHOUT_GPU
        if self.is_of_versions:
            self.notes += comparison.moved(self.rows(), self.config.by)
        kernel = self.entry.loaded.kernel
        changed = code.most_changed(self.measured_rounds, kernel, self.is_of_environments)
        for provider, match in changed.items():
            with console.status(f"Comparing the compiled code of {provider} …"):
                self.notes += code.explained(match, architecture)

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
                say(f"{candidate.side.name}: {candidate.point}: {outcome.status}: {outcome.error}")
        for note in self.notes:
            say(note)
        for line in self._summary(self.measured_rounds, rows):
            say(line)
        picture = self.path.with_suffix(".svg")
        write_atomically(picture, comparison.plot(rows, self.title, self.rule.margin))
        found = self.found(rows).to_json(indent=2) + b"\n"
        write_atomically(self.path.with_suffix(".json"), found)
        say(f"{monotonic() - self.begin:.1f} s. Every round's samples: {self.path}; the ratios: {picture}.")

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
