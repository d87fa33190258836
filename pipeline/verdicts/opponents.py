"""Find the two sides that ``a`` and ``b`` of a comparison name, and the pairs of points to measure side by
side."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline import ROOT
from pipeline.points import choice, notation
from pipeline.points.catalog import Entry
from pipeline.points.notation import Variant
from pipeline.store import commit
from pipeline.verdicts.rounds import Side
from pipeline.verdicts.sides import SOURCES, Answer, Planned, Question, answer, ask, folder_of, tree_of

TREE = "tree"
"""The name of the working tree."""

Pair = tuple[Planned, Planned]
"""A point of side a, and the point of side b that it is compared with."""


@dataclass(frozen=True)
class Named:
    """The side that an option names: the working tree, a commit, or a configuration of the working tree."""

    text: str
    commit: str | None = None
    variant: Variant | None = None

    @property
    def kind(self) -> str:
        """The kind of side, which can only be compared with its own kind."""
        return "commits" if self.variant is None else "configurations"

    @property
    def name(self) -> str:
        """The name in tables, files and rows."""
        if self.kind != "commits":
            return self.text
        return TREE if self.commit is None else self.commit[:12]


def both(entry: Entry, a: str | None, b: str | None) -> tuple[Named, Named]:
    """Return what the two options name; ``b`` None is the working tree. Raises UserError, with what could be
    written, unless the two can be compared."""
    if a is None:
        raise UserError(f"a is missing: write a=COMMIT, to compare it with the working tree's {entry.name}.")
    one, other = _named(entry, "a", a), _named(entry, "b", b or TREE)
    if one.kind != other.kind:
        raise UserError(
            f"a={one.text} and b={other.text}: write two commits, two configurations, or two machines."
        )
    if one.kind != "configurations" and one.name == other.name:
        raise UserError(f"a and b are both {one.name}: write self_test=true to compare the tree with itself.")
    if one.commit and other.commit:  # beside the tree, a commit is plainly meant without the edits
        _refuse_commit_below_edits(entry, "a", one)
        _refuse_commit_below_edits(entry, "b", other)
    return one, other


def repository(entry: Entry) -> Path:
    """Return the repository that holds the kernel's commits."""
    folder = entry.loaded.folder
    if not entry.loaded.is_outside:
        return ROOT
    return Path(_git(folder, "rev-parse", "--show-toplevel") or folder)


@contextmanager
def side(entry: Entry, named: Named, name: str, question: Question) -> Iterator[tuple[Side, Answer]]:
    """Yield a side with the points that it would measure. A commit's files are removed afterwards."""
    loaded = entry.loaded
    if named.commit is None:
        yield Side(name, ROOT, loaded.where), answer(question)
    elif loaded.is_outside:
        with folder_of(repository(entry), named.commit, loaded.folder) as folder:
            where = str(folder)
            found = _asked(named, ROOT, question.replace(where=where))
            try:
                yield Side(name, ROOT, where), found
            finally:
                if found.built is not None:
                    shutil.rmtree(found.built, ignore_errors=True)
    else:
        with tree_of(named.commit) as root:
            yield Side(name, root, loaded.where), _asked(named, root, question)


def pairs_of_trees(a: Named, of_a: Answer, b: Named, of_b: Answer) -> tuple[list[Pair], list[str]]:
    """Return the pairs of points that both sides have and whose keys differ, and sentences about what is left
    out. Raises UserError if there is no such pair."""
    same_points = pairs_of_equals(of_a, of_b)
    notes = []
    for name, mine, other in ((a.name, of_a, of_b), (b.name, of_b, of_a)):
        others = {one.point for one in other.planned}
        if alone := Counter(one.point.provider for one in mine.planned if one.point not in others):
            counts = ", ".join(f"{provider} {count}" for provider, count in alone.items())
            notes.append(f"Only {name} has these points: {counts}.")
    pairs = [(one, other) for one, other in same_points if one.parts.key != other.parts.key]
    if not same_points:
        raise UserError(f"{a.name} and {b.name} have no point in common. {' '.join(notes)}")
    if not pairs:
        raise UserError(
            f"{a.name} and {b.name} have the same sources for {notation.points(len(same_points))}: "
            "nothing to compare. Write self_test=true to see what equal sources give."
        )
    if same := len(same_points) - len(pairs):
        notes.append(f"Left out, for both sides have the same sources: {notation.points(same)}.")
    return pairs, notes


def pairs_of_equals(of_a: Answer, of_b: Answer) -> list[Pair]:
    """Return the pairs of points that both sides have."""
    theirs = {one.point: one for one in of_b.planned}
    return [(one, theirs[one.point]) for one in of_a.planned if one.point in theirs]


def pairs_of_configurations(entry: Entry, a: Named, of_a: Answer, b: Named, of_b: Answer) -> list[Pair]:
    """Return the pair of configurations at each problem. A parameter that was not named has the value nearest
    to its default. Raises UserError if no problem fits both, or if both are the same configuration."""
    mine, theirs = _nearest(entry, of_a), _nearest(entry, of_b)
    pairs = [(one, theirs[problem]) for problem, one in mine.items() if problem in theirs]
    if not pairs:
        left_out = " ".join(dict.fromkeys([*of_a.refusals, *of_b.refusals]))
        raise UserError(f"no problem fits both {a.text} and {b.text}. {left_out}".strip())
    if all(one.parts.key == other.parts.key for one, other in pairs):
        raise UserError(f"{a.text} and {b.text} are the same: write two configurations.")
    return pairs


def spread(pairs: Sequence[Pair], most: int) -> list[Pair]:
    """Return at most ``most`` of the pairs, at even distances."""
    if len(pairs) <= most:
        return list(pairs)
    return [pairs[round(index * (len(pairs) - 1) / max(1, most - 1))] for index in range(most)]


def _named(entry: Entry, option: str, text: str) -> Named:
    """Return what an option's text names. Raises UserError with what could be written."""
    if text == TREE:
        return Named(text)
    if text.partition("/")[0] in {provider.name for provider in entry.loaded.kernel.providers}:
        return Named(text, variant=Variant.read(text, entry))
    root = repository(entry)
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    if found is None:
        if why := commit.unreadable(root):
            raise UserError(f"{option}={text}: no commit of {root} can be read: {why}.")
        raise UserError(
            f"{option}={text} names no commit, branch or tag of this repository, no provider of "
            f"{entry.name}, and no machine with results; write {TREE} for the working tree, "
            "or PROVIDER/CONFIGURATION."
        )
    return Named(text, commit=found)


def _refuse_commit_below_edits(entry: Entry, option: str, named: Named) -> None:
    """Raise UserError for the checked-out commit if there are edits, which may be meant, too."""
    root = repository(entry)
    sources = (str(entry.loaded.folder),) if entry.loaded.is_outside else SOURCES
    if named.commit == _git(root, "rev-parse", "HEAD") and _git(
        root, "status", "--porcelain", "--", *sources
    ):
        raise UserError(
            f"{option}={named.text} is the commit of a working tree that was edited since; "
            f"write {option}={TREE} for the files as they are, or commit them."
        )


def _asked(named: Named, root: Path, question: Question) -> Answer:
    try:
        return ask(root, question)
    except UserError as error:
        raise UserError(f"{named.text}: {error}") from error


def _nearest(entry: Entry, found: Answer) -> dict[Values, Planned]:
    """Return each problem's point whose parameters are nearest to the defaults."""
    by_problem: dict[Values, dict[Point, Planned]] = {}
    for one in found.planned:
        by_problem.setdefault(one.point.problem, {})[one.point] = one
    kernel = entry.loaded.kernel
    return {problem: some[choice.near_default(kernel, list(some))] for problem, some in by_problem.items()}


def _git(root: Path, *words: str) -> str | None:
    with suppress(FileNotFoundError):
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    return None
