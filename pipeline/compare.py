"""Is b really faster than a? Both are measured side by side, in rounds, until it is known.

    python -m pipeline.compare kernel=softmax a=HEAD~1 b=HEAD
    python -m pipeline.compare kernel=softmax a=main
    python -m pipeline.compare kernel=softmax a=triton_tile/1024x4w b=cuda/1024x8w
    python -m pipeline.compare a=nvidia-h200 b=nvidia-h100-80gb-hbm3
    python -m pipeline.compare kernel=softmax self_test=true

Of commits, the points whose sources differ are measured; of the working tree too, as it is. Prints a table
with each ratio, its interval and the verdict. Stopped in any way, the same command goes on where it was. Of
two machines nothing is measured: what they left is set side by side, without a verdict, of one kernel or of
all: how much of the difference their ceilings explain, and what the best configuration of the one costs on
the other.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import isfinite, log
from pathlib import Path
from time import monotonic

import kernels
from pipeline import ROOT, UserError
from pipeline.command.options import CompareConfig
from pipeline.command.run import console, run_stage
from pipeline.execution import calibration
from pipeline.execution.supervisor import Supervisor
from pipeline.machine import device
from pipeline.machine.environment import fingerprint
from pipeline.machine.lock import DeviceLock
from pipeline.points import choice, notation, problems
from pipeline.points.frozen import Values
from pipeline.points.notation import Variant
from pipeline.points.point import Point
from pipeline.reporting import machines_shown, ratios
from pipeline.reporting.numbers import print_wide
from pipeline.reporting.progress import Progress
from pipeline.reporting.ratios import Compared
from pipeline.store import commit, comparisons, results, runs, turns
from pipeline.store.ceilings import Ceilings, rate
from pipeline.store.comparisons import Comparison, Row
from pipeline.store.files import write_atomically
from pipeline.store.record import Launch, noise_class
from pipeline.store.turns import Turn
from pipeline.toolchain.extension import WITHOUT_GPU
from pipeline.verdicts import code
from pipeline.verdicts.contest import Contest, Limits, Match, Rival, Side, medians
from pipeline.verdicts.sides import (
    SOURCES,
    Answer,
    Planned,
    Question,
    answer,
    ask,
    folder_of,
    tree_of,
)
from pipeline.verdicts.statistics import Estimate, Rule, deviation

warn = partial(console.print, style="yellow", highlight=False, soft_wrap=True)
say = partial(console.print, highlight=False, soft_wrap=True)

CODE = ("triton", "gluon", "numba", "cuda")
"""Languages whose compiled code has numbers."""

TREE = "tree"
"""What the working tree is called."""


@dataclass(frozen=True)
class Named:
    """What an option names: the working tree, a commit, or configurations of the working tree."""

    text: str
    commit: str | None = None
    variant: Variant | None = None

    @property
    def kind(self) -> str:
        """What can be compared with it."""
        return "commits" if self.variant is None else "configurations"

    @property
    def name(self) -> str:
        """As it stands in tables, files and rows."""
        if self.kind != "commits":
            return self.text
        return TREE if self.commit is None else self.commit[:12]


def run(config: CompareConfig) -> None:
    """Compare, and print what came of it."""
    if config.most_rounds < config.rounds:
        raise UserError("most_rounds: write no fewer than rounds.")
    chosen = device.resolve(config.device)
    both = machines_shown.found(config.a, config.b, (config.output, ROOT / "results"), warn)
    if both is not None:
        show(config, both)
        return
    if config.kernel is None:
        raise UserError(f"kernel is missing: write kernel=NAME with one of {', '.join(kernels.names())}.")
    command = Compare(config, chosen)
    with ExitStack() as stack:
        stack.enter_context(DeviceLock(chosen, config.wait_s, warn))
        command.measure_ceilings()
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


def show(config: CompareConfig, both: machines_shown.Machines) -> None:
    """Print two machines' results side by side, of the kernel or of all that both have."""
    names = both.kernels if config.kernel is None else [config.entry.name]
    shown = [both.show(console, name, config.format == "markdown") for name in names]
    if not any(shown):
        of = "" if config.kernel is None else f" of {config.kernel}"
        raise UserError(f"{both.a} and {both.b} were measured at no problem{of} in common.")


class Compare:
    """One comparison on one device."""

    def __init__(self, config: CompareConfig, chosen: device.Device) -> None:
        self.config = config
        self.device = chosen
        self.entry = config.entry
        self.environment = fingerprint(chosen)
        self.rule = Rule(margin=config.margin, beyond=config.beyond)
        self.a, self.b = (
            (Named(TREE), Named(TREE)) if config.self_test else _both(config, self.entry.name, self._named)
        )
        self.begin = monotonic()
        self.contest: Contest | None = None
        self.notes: list[str] = []
        self.ceilings: Ceilings | None = None
        self.ceilings_path = Path()
        word = "self-test" if config.self_test else f"{self.a.name}..{self.b.name}"
        folder = results.folder_for(config.output, chosen.kind)
        name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", word)
        self.path = comparisons.path(folder, self.entry.name, chosen.slug, name)

    @property
    def title(self) -> str:
        """What is compared, and where."""
        if self.config.self_test:
            return f"{self.entry.name} on {self.device.slug}: the working tree with itself"
        return f"{self.entry.name} on {self.device.slug}: a is {self.a.name}, b is {self.b.name}"

    def _named(self, option: str, text: str) -> Named:
        """What an option's text names. Raises UserError with what could be written."""
        kernel = self.entry.loaded.kernel
        if text == TREE:
            return Named(text)
        if text.partition("/")[0] in {provider.name for provider in kernel.providers}:
            return Named(text, variant=Variant.read(text, self.entry))
        root = self.repository
        found = _git(root, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
        if found is None:
            raise UserError(
                f"{option}={text}: no commit, branch or tag of this repository, no provider of "
                f"{self.entry.name}, and no machine that left results; write {TREE} for the working tree, "
                "or PROVIDER/CONFIGURATION."
            )
        if found == _git(root, "rev-parse", "HEAD") and _git(
            root, "status", "--porcelain", "--", *self._sources
        ):
            raise UserError(
                f"{option}={text} is the commit below a working tree that was edited; "
                f"write {option}={TREE} for the files as they are, or commit them."
            )
        return Named(text, commit=found)

    @property
    def repository(self) -> Path:
        """The repository that the kernel's commits are of."""
        folder = self.entry.loaded.folder
        if not self.entry.loaded.is_outside:
            return ROOT
        return Path(_git(folder, "rev-parse", "--show-toplevel") or folder)

    @property
    def _sources(self) -> tuple[str, ...]:
        folder = self.entry.loaded.folder
        return (str(folder),) if self.entry.loaded.is_outside else SOURCES

    @contextmanager
    def side(self, named: Named, name: str) -> Iterator[tuple[Side, Answer]]:
        """A side with what it would measure; a commit's files are gone afterwards."""
        loaded, config = self.entry.loaded, self.config
        pins = {**config.pin, **(named.variant.pins if named.variant else {})}
        question = Question(
            where=loaded.where,
            preset=config.preset.name,
            device=str(self.device),
            settings=config.timing,
            seed=config.seed,
            providers=(named.variant.provider,) if named.variant else config.provider,
            pins=pins,
        )
        if named.commit is None:
            yield Side(name, ROOT, loaded.where), answer(question)
        elif loaded.is_outside:
            with folder_of(self.repository, named.commit, loaded.folder) as folder:
                where = str(folder)
                asked = question.model_copy(update={"where": where})
                found = self._asked(named, ROOT, asked)
                try:
                    yield Side(name, ROOT, where), found
                finally:
                    if found.built is not None:
                        shutil.rmtree(found.built, ignore_errors=True)
        else:
            with tree_of(named.commit) as root:
                yield Side(name, root, loaded.where), self._asked(named, root, question)

    def _asked(self, named: Named, root: Path, question: Question) -> Answer:
        try:
            return ask(root, question)
        except UserError as error:
            raise UserError(f"{named.text}: {error}") from error

    def matches(self, stack: ExitStack) -> list[Match]:
        """What is measured side by side. Raises UserError where nothing is."""
        (a, of_a), (b, of_b) = (
            stack.enter_context(self.side(named, name))
            for named, name in zip((self.a, self.b), self._names(), strict=True)
        )
        for name, found in ((a.name, of_a), (b.name, of_b)):
            for provider, reason in found.broken.items():
                warn(f"{name}: {provider} was not built: {reason}")
        pairs = self._of_configurations(of_a, of_b) if self.b.variant else self._of_trees(of_a, of_b)
        if self.config.points is not None:
            pairs = _spread(pairs, self.config.points)
        noise = {} if self.ceilings is None else self.ceilings.noise
        return [
            Match(
                (Rival(a, one.point, one.parts.key), Rival(b, other.point, other.parts.key)),
                noise.get(self._noise_class(one.point), 0.0),
            )
            for one, other in pairs
        ]

    def _names(self) -> tuple[str, str]:
        """Of the sides. Configurations have one, and so one process a round."""
        if self.config.self_test:
            return "a", "b"
        return (TREE, TREE) if self.b.variant else (self.a.name, self.b.name)

    def _of_trees(self, of_a: Answer, of_b: Answer) -> list[tuple[Planned, Planned]]:
        """The points that both have, and that differ by their keys."""
        theirs = {one.point: one for one in of_b.planned}
        both = [(one, theirs[one.point]) for one in of_a.planned if one.point in theirs]
        if self.config.self_test:
            return both
        for name, mine, other in ((self.a.name, of_a, of_b), (self.b.name, of_b, of_a)):
            others = {one.point for one in other.planned}
            if alone := Counter(one.point.provider for one in mine.planned if one.point not in others):
                counts = ", ".join(f"{provider} {count}" for provider, count in alone.items())
                self.notes.append(f"Only {name} has these points: {counts}.")
        pairs = [(one, other) for one, other in both if one.parts.key != other.parts.key]
        if not both:
            raise UserError(
                f"{self.a.name} and {self.b.name} have no point in common. {' '.join(self.notes)}"
            )
        if not pairs:
            raise UserError(
                f"{self.a.name} and {self.b.name} have the same sources for {_points(len(both))}: nothing to "
                "compare. Write self_test=true to see what equal sources give."
            )
        if same := len(both) - len(pairs):
            self.notes.append(f"Left out, for both sides have the same sources: {_points(same)}.")
        return pairs

    def _of_configurations(self, of_a: Answer, of_b: Answer) -> list[tuple[Planned, Planned]]:
        """The two configurations at each problem; of parameters that were not named the default."""
        mine, theirs = self._nearest(of_a), self._nearest(of_b)
        both = [(one, theirs[problem]) for problem, one in mine.items() if problem in theirs]
        if not both:
            left_out = " ".join(dict.fromkeys([*of_a.refusals, *of_b.refusals]))
            raise UserError(f"{self.a.text} and {self.b.text} fit no problem together. {left_out}".strip())
        if all(one.parts.key == other.parts.key for one, other in both):
            raise UserError(f"{self.a.text} and {self.b.text} are the same: write two configurations.")
        return both

    def _nearest(self, found: Answer) -> dict[Values, Planned]:
        """By problem the point whose parameters are nearest to the defaults."""
        by_problem: dict[Values, dict[Point, Planned]] = {}
        for one in found.planned:
            by_problem.setdefault(one.point.problem, {})[one.point] = one
        kernel = self.entry.loaded.kernel
        return {
            problem: some[choice.near_default(kernel, list(some))] for problem, some in by_problem.items()
        }

    def measure_ceilings(self) -> None:
        """Find the ceilings, and what is known of equal kernels here."""
        config = self.config
        repository = results.folder_for(ROOT / "results", self.device.kind)
        folders = [results.folder_for(config.output, self.device.kind), repository]
        paths = [results.ceilings_path(folder, self.device.slug) for folder in folders]
        with Supervisor(self.device, config.timing, config.seed, config.point_timeout_s) as worker:
            self.ceilings = calibration.known_or_measured(worker, self.environment, paths, paths[0])
        self.ceilings_path = paths[0]

    def _noise_class(self, point: Point) -> str:
        kernel = self.entry.loaded.kernel
        work = kernel.work(problems.make(kernel.problem, point.problem))
        return noise_class(rate(1.0, work, self.ceilings), 1.0)

    def hold(self, matches: Sequence[Match]) -> None:
        """Measure, and keep each turn as it comes."""
        config, ceilings = self.config, self.ceilings
        assert ceilings is not None, "ceilings are found before anything is measured"
        limits = Limits(config.rounds, config.most_rounds)
        known = [] if config.remeasure else turns.read(self.path, warn)
        with Progress(console, self.title) as progress:

            def report(turn: Turn) -> None:
                turns.append(self.path, turn)
                progress.advance(f"round {turn.round + 1}: {turn.point}")

            contest = Contest(matches, limits, self.rule, commit.new_run(), report, progress.expect)
            contest.know(known)
            self.contest = contest
            if not contest.lacks():
                say("Nothing to measure: every round is there. Write remeasure=true to measure again.")
            contest.hold(self.device, config.timing, config.seed, config.point_timeout_s, ceilings.overhead)
        if config.self_test:
            noise = {name: found for name, (found, _) in self.noise().items()}
            told = ceilings.model_copy(update={"noise": {**ceilings.noise, **noise}})
            write_atomically(self.ceilings_path, told.model_dump_json(indent=2).encode() + b"\n")

    def explain(self) -> None:
        """Note what the compiler made of the two sides, of each provider that became faster or slower: at its
        point that did so most."""
        contest = self.contest
        assert contest is not None, "what is explained was measured"
        estimates, verdicts = contest.estimates(), contest.verdicts()
        most: dict[str, Match] = {}
        for match in contest.matches:
            a, b = match.rivals
            language = self.entry.loaded.kernel.provider(b.point.provider).language
            if a.side == b.side or language not in CODE or verdicts[match, b] not in ("faster", "slower"):
                continue
            other = most.setdefault(b.point.provider, match)
            if _size(estimates[match, b]) > _size(estimates[other, other.rivals[1]]):
                most[b.point.provider] = match
        capability = self.environment.compute_capability
        architecture = capability.replace(".", "") if capability else WITHOUT_GPU
        for provider, match in most.items():
            a, b = match.rivals
            with console.status(f"Looking into what {provider} was compiled to …"):
                try:
                    both = [
                        code.of_side(one.side.root, one.side.where, one.point, architecture) for one in (a, b)
                    ]
                except UserError as error:
                    self.notes.append(f"What {provider} was compiled to is not known: {error}")
                    continue
            lines = code.differences(*both)
            place = f"{provider} at {notation.extent(b.point)} {notation.words(b.point)}".strip()
            what = "differs:" if lines else "has the same numbers on both sides."
            self.notes.append(f"The code of {place}, sm_{architecture}, {what}")
            self.notes += [f"  {line}" for line in lines]

    def rows(self) -> list[Compared]:
        """What is known of each match that has rounds."""
        contest = self.contest
        if contest is None:
            return []
        estimates, verdicts = contest.estimates(), contest.verdicts()
        found = []
        for match in contest.matches:
            a, b = match.rivals
            middle = medians(contest.times(match))
            if middle:
                one = estimates[match, b]
                problem = f"{notation.extent(a.point)} {notation.words(a.point)}".strip()
                changed = _changed(self._launch(a), self._launch(b))
                names = notation.label(a.point), notation.label(b.point)
                found.append(
                    Compared(problem, *names, middle[a], middle[b], one, verdicts[match, b], changed)
                )
        return found

    def _launch(self, rival: Rival) -> tuple[Launch, ...] | None:
        assert self.contest is not None
        told = [turn.outcome.launch for turn in self.contest.of(rival)]
        return told[-1] if told else None

    def show(self) -> None:
        """Print the table, what failed, what is known in all, and where it lies."""
        rows = self.rows()
        if self.contest is None or (not rows and not self.contest.turns):
            return
        shown = [row for row in rows if row.verdict != "same"] if self.config.self_test else rows
        if self.config.format == "markdown":
            console.print(ratios.markdown(shown, self.title), soft_wrap=True)
        elif shown:
            print_wide(console, ratios.table(shown, self.title))
        for match in self.contest.matches:
            if failed := self.contest.failure(match):
                rival, outcome = failed
                say(f"{rival.side.name}: {rival.point} was {outcome.status}: {outcome.error}")
        for note in self.notes:
            say(note)
        for line in self.summary(rows):
            say(line)
        picture = self.path.with_suffix(".svg")
        write_atomically(picture, ratios.plot(rows, self.title, self.config.margin))
        found = self.found(rows).model_dump_json(indent=2).encode() + b"\n"
        write_atomically(self.path.with_suffix(".json"), found)
        say(f"{monotonic() - self.begin:.1f} s. Every round's samples: {self.path}; the ratios: {picture}.")

    def found(self, rows: Sequence[Compared]) -> Comparison:
        """What is kept of the comparison beside its samples."""
        assert self.contest is not None, "there are rows once there is a contest"
        head, _ = commit.head(self.repository)
        sides = [comparisons.Side(name=named.name, commit=named.commit or head) for named in (self.a, self.b)]
        return Comparison(
            kernel=self.entry.name,
            gpu=self.device.slug,
            run=self.contest.run,
            command=commit.command_line("compare"),
            at=datetime.now(UTC),
            a=sides[0],
            b=sides[1],
            margin=self.config.margin,
            beyond=self.config.beyond,
            rows=tuple(
                Row(
                    problem=row.problem,
                    a=row.a,
                    b=row.b,
                    a_us=row.a_us,
                    b_us=row.b_us,
                    rounds=row.estimate.rounds,
                    ratio=row.estimate.ratio,
                    low=row.estimate.low,
                    high=row.estimate.high if isfinite(row.estimate.high) else None,
                    verdict=row.verdict,
                    changed=row.changed,
                )
                for row in rows
            ),
        )

    def summary(self, rows: Sequence[Compared]) -> list[str]:
        """Counts and means."""
        if not rows:
            return []
        counts = Counter(row.verdict for row in rows)
        words = ", ".join(f"{counts[word]} {word}" for word in ("same", "faster", "slower", "undecided"))
        mean = ratios.geometric_mean([row.estimate.ratio for row in rows])
        found = [f"{_points(len(rows))}: b is {words}. Geometric mean of b / a: {mean:.4f}."]
        if self.config.self_test:
            wrong = counts["faster"] + counts["slower"]
            widths = sorted(_half(row.estimate) for row in rows if isfinite(row.estimate.high))
            middle = f"; intervals are ± {widths[len(widths) // 2]:.2%} wide at the median" if widths else ""
            found.append(f"{wrong} of {len(rows)} equal pairs were called different{middle}.")
            found += [
                f"Noise between rounds, {name}-bound kernels: {noise:.2%} ({_points(count)})."
                for name, (noise, count) in self.noise().items()
            ]
        return found

    def noise(self) -> dict[str, tuple[float, int]]:
        """The standard deviation of the logarithms of equal kernels' ratios, by ``noise_class``, and of how
        many points."""
        assert self.contest is not None
        logs: dict[str, list[list[float]]] = {}
        for match in self.contest.matches:
            a, b = match.rivals
            times = self.contest.times(match)
            if times[a] and (name := self._noise_class(a.point)):
                logs.setdefault(name, []).append(
                    [log(its / own) for own, its in zip(times[a], times[b], strict=True)]
                )
        return {name: (deviation(found), len(found)) for name, found in logs.items()}


def publish(config: CompareConfig) -> None:
    """Log the comparisons of the output to MLflow. A tracker in trouble has harmed no measurement."""
    from pipeline.reporting import mlflow_publish

    say_all = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    files = mlflow_publish.Files(
        runs=runs.folder_in(config.output), kernel=config.entry.name, ids=frozenset()
    )
    tracker = mlflow_publish.Tracker(config.tracking.name, config.tracking.uri)
    published = mlflow_publish.publish(files, tracker, say_all)
    if published is not None:
        say_all(mlflow_publish.how_to_open(published))


def _both(config: CompareConfig, kernel: str, named: Callable[[str, str], Named]) -> tuple[Named, Named]:
    """What the options name. Raises UserError unless the two can be compared."""
    if config.a is None:
        raise UserError(f"a is missing: write a=COMMIT, to compare it with the working tree's {kernel}.")
    a, b = named("a", config.a), named("b", config.b or TREE)
    if a.kind != b.kind:
        raise UserError(f"a={a.text} and b={b.text}: write two commits, two configurations, or two machines.")
    if a.kind != "configurations" and a.name == b.name:
        raise UserError(f"a and b are both {a.name}: write self_test=true to compare the tree with itself.")
    return a, b


def _points(count: int) -> str:
    return f"{count} point{'s' * (count != 1)}"


def _half(one: Estimate) -> float:
    return (one.high - one.low) / 2


def _spread(pairs: list[tuple[Planned, Planned]], most: int) -> list[tuple[Planned, Planned]]:
    if len(pairs) <= most:
        return pairs
    return [pairs[round(index * (len(pairs) - 1) / max(1, most - 1))] for index in range(most)]


def _size(one: Estimate) -> float:
    """How far a ratio is from 1, up or down."""
    return abs(log(one.ratio))


def _changed(before: Sequence[Launch] | None, after: Sequence[Launch] | None) -> str:
    """What of a launch is another: ``block 128 -> 256``."""
    if not before or not after or len(before) != len(after):
        return ""
    found = []
    for one, other in zip(before, after, strict=True):
        for name in Launch.model_fields:
            old, new = getattr(one, name), getattr(other, name)
            if old != new:
                found.append(f"{name} {_word_of(old)} -> {_word_of(new)}")
    return ", ".join(dict.fromkeys(found))


def _word_of(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _git(root: Path, *words: str) -> str | None:
    with suppress(FileNotFoundError):
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    return None


if __name__ == "__main__":
    run_stage("compare", CompareConfig, run)
