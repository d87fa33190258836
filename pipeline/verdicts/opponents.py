"""Find the two sides that ``a`` and ``b`` of a comparison name, and the pairs of points to measure side by
side."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.fork_server import Root
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point

from .. import ROOT
from ..execution.side_process import SideProcess
from ..points import choice, notation
from ..points.catalog import Entry
from ..points.notation import Variant
from ..store import commit
from . import environments, sides
from .rounds import Side
from .sides import SOURCES, Answer, Planned, Question, Reply, folder_of, tree_of

TREE = "tree"
"""The name of the working tree."""

Pair = tuple[Planned, Planned]
"""A point of side a, and the point of side b that it is compared with."""


@dataclass(frozen=True)
class Named:
    """The side that an option names: the working tree, a commit, a configuration of the working tree, or the
    working tree in an environment, whose ``packages`` are in a folder when they are installed."""

    text: str
    commit: str | None = None
    variant: Variant | None = None
    packages: Path | None = None

    @property
    def kind(self) -> str:
        """The kind of side, which can only be compared with its own kind."""
        if self.text.startswith(environments.PREFIX):
            return "environments"
        return "commits" if self.variant is None else "configurations"

    @property
    def name(self) -> str:
        """The name in tables, files and rows."""
        if self.kind != "commits":
            return self.text
        return TREE if self.commit is None else self.commit[:12]


def both(entry: Entry | None, a: str | None, b: str | None) -> tuple[Named, Named]:
    """Return the sides that the two options name. ``entry`` None stands for all kernels of the repository.

    ``b`` None is the working tree, as is ``a`` None beside an environment. Without both, an edited tree is
    compared with its commit, and a commit without edits with its first parent. Raises UserError, with what
    could be written, unless the two can be compared.
    """
    if a is None and b is None:
        return _edited_or_last(entry)
    if a is None and not str(b).startswith(environments.PREFIX):
        raise UserError("a is missing: write a=COMMIT, or leave b out, too.")
    one, other = _named(entry, "a", a or TREE), _named(entry, "b", b or TREE)
    is_beside_installed = "environments" in (one.kind, other.kind) and TREE in (one.text, other.text)
    if one.kind != other.kind and not is_beside_installed:
        raise UserError(
            f"a={one.text} and b={other.text}: write two commits, two configurations, two environments, or "
            "two machines."
        )
    if one.commit and other.commit:  # beside b=tree, a=COMMIT can only mean the commit without the edits
        _refuse_commit_below_edits(entry, "a", one)
        _refuse_commit_below_edits(entry, "b", other)
    return one, other


def _edited_or_last(entry: Entry | None) -> tuple[Named, Named]:
    root, of = repository(entry), sources(entry)
    head = commit.git(root, "rev-parse", "HEAD")
    if head is None:
        raise UserError(f"there is no last commit to compare with: {commit.unreadable(root)}.")
    if not commit.is_clean(root, *of):
        return Named("HEAD", head), Named(TREE)
    parent = commit.git(root, "rev-parse", "--verify", "--quiet", "HEAD~1^{commit}")
    if parent is None:
        raise UserError(
            f"{head[:12]} has no edits and no parent here: write a=COMMIT; a shallow clone gets parents by "
            "git fetch --deepen=1."
        )
    return Named("HEAD~1", parent), Named("HEAD", head)


def repository(entry: Entry | None) -> Path:
    """Return the repository that holds the kernel's commits."""
    if entry is None or not entry.loaded.is_outside:
        return ROOT
    folder = entry.loaded.folder
    return Path(commit.git(folder, "rev-parse", "--show-toplevel") or folder)


def sources(entry: Entry | None) -> tuple[str, ...]:
    """Return the paths that a side takes from its commit."""
    return (str(entry.loaded.folder),) if entry is not None and entry.loaded.is_outside else SOURCES


def are_equal(entry: Entry | None, a: Named, b: Named) -> bool:
    """Whether two trees have equal files, among the files that a side takes from its commit."""
    root, of = repository(entry), sources(entry)
    commits = [one.commit for one in (a, b) if one.commit is not None]
    is_edited = len(commits) < 2 and not commit.is_clean(root, *of)
    if a.variant or is_edited or "environments" in (a.kind, b.kind):
        return False
    return commit.git(root, "diff", "--quiet", *(commits or ["HEAD"]), "--", *of) is not None


@dataclass(frozen=True)
class Files:
    """The files of a side. ``folder`` is the folder of a kernel outside of the repository, and ``built`` gets
    the folders of its libraries."""

    named: Named
    root: Path
    folder: Path | None = None
    built: set[Path] = field(default_factory=set)

    @property
    def code(self) -> Path | Root:
        """The folder whose code the side's processes run, with the variables of its environment."""
        packages = self.named.packages
        return self.root if packages is None else Root(self.root, environments.variables(packages))

    def side(self, entry: Entry, name: str) -> Side:
        """Return the side of a kernel's candidates."""
        return Side(name, self.code, self._where(entry.loaded.where))

    def begin(self, questions: Sequence[Question]) -> SideProcess | None:
        """Begin to ask the side's own process; None if this process answers, which needs none."""
        if not questions or (self.named.commit is None and self.named.packages is None):
            return None
        return sides.begin(self.code, [one.replace(where=self._where(one.where)) for one in questions])

    def replies(self, questions: Sequence[Question], begun: SideProcess | None) -> list[Reply]:
        """Return the side's reply to each question; an error message begins with the side's name. Raises
        UserError if the side's process fails."""
        if begun is None:
            return sides.replies(questions)
        try:
            found = sides.ended(begun)
        except UserError as error:
            raise UserError(f"{self.named.text}: {error}") from error
        self.built.update(one.answer.built for one in found if one.answer and one.answer.built)
        return [one if one.error is None else Reply(error=f"{self.named.text}: {one.error}") for one in found]

    def _where(self, where: str) -> str:
        return where if self.folder is None else str(self.folder)


def ask(both: Sequence[Files], questions: Sequence[Sequence[Question]]) -> list[list[Reply]]:
    """Return each side's replies to its questions. The sides answer at the same time."""
    found: dict[int, list[Reply]] = {}
    with ExitStack() as stack:
        begun = [of.begin(some) for of, some in zip(both, questions, strict=True)]
        for process in begun:
            if process is not None:
                stack.enter_context(process)
        # This process answers while the sides' processes answer.
        for number in sorted(range(len(both)), key=lambda number: begun[number] is not None):
            found[number] = both[number].replies(questions[number], begun[number])
    return [found[number] for number in range(len(both))]


@contextmanager
def files(entry: Entry | None, named: Named) -> Iterator[Files]:
    """Yield the files of a side. The files of a commit are removed afterwards."""
    if named.commit is None:
        yield Files(named, ROOT)
    elif entry is not None and entry.loaded.is_outside:
        with folder_of(repository(entry), named.commit, entry.loaded.folder) as folder:
            found = Files(named, ROOT, folder)
            try:
                yield found
            finally:
                for built in found.built:
                    shutil.rmtree(built, ignore_errors=True)
    else:
        with tree_of(named.commit) as root:
            yield Files(named, root)


def pairs_of_trees(a: Named, of_a: Answer, b: Named, of_b: Answer) -> tuple[list[Pair], list[str]]:
    """Return the pairs of points that both sides have and whose keys differ, and sentences about the points
    that are left out."""
    same_points = pairs_of_equals(of_a, of_b)
    notes = []
    for name, mine, other in ((a.name, of_a, of_b), (b.name, of_b, of_a)):
        others = {one.point for one in other.planned}
        if alone := Counter(one.point.provider for one in mine.planned if one.point not in others):
            counts = ", ".join(f"{provider} {count}" for provider, count in alone.items())
            notes.append(f"Only {name} has these points: {counts}.")
    pairs = [(one, other) for one, other in same_points if one.parts.key != other.parts.key]
    if same := len(same_points) - len(pairs):
        of = "sources and packages" if of_a.packages else "sources"
        notes.append(f"Left out, for both sides have the same {of}: {notation.points(same)}.")
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


def _named(entry: Entry | None, option: str, text: str) -> Named:
    """Return the side that an option's text names. Raises UserError, with what could be written, if it names
    no side."""
    if text == TREE or text.startswith(environments.PREFIX):
        return Named(text)
    if entry and text.partition("/")[0] in {provider.name for provider in entry.loaded.kernel.providers}:
        return Named(text, variant=Variant.read(text, entry))
    root = repository(entry)
    found = commit.git(root, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    if found is None:
        if why := commit.unreadable(root):
            raise UserError(f"{option}={text}: no commit of {root} can be read: {why}.")
        raise UserError(
            f"{option}={text} names no commit, branch or tag of this repository, no provider"
            f"{f' of {entry.name}' if entry else ''}, and no machine with results; write {TREE} for the "
            "working tree, or PROVIDER/CONFIGURATION with kernel=NAME."
        )
    return Named(text, commit=found)


def _refuse_commit_below_edits(entry: Entry | None, option: str, named: Named) -> None:
    """Raise UserError for the checked-out commit if the tree has edits, because the user may mean the edited
    tree."""
    root = repository(entry)
    if named.commit == commit.git(root, "rev-parse", "HEAD") and not commit.is_clean(root, *sources(entry)):
        raise UserError(
            f"{option}={named.text} names the last commit, and the working tree has edits; "
            f"write {option}={TREE} for the files as they are, or commit them."
        )


def _nearest(entry: Entry, found: Answer) -> dict[Values, Planned]:
    """Return each problem's point whose parameters are nearest to the defaults."""
    by_problem: dict[Values, dict[Point, Planned]] = {}
    for one in found.planned:
        by_problem.setdefault(one.point.problem, {})[one.point] = one
    kernel = entry.loaded.kernel
    return {problem: some[choice.near_default(kernel, list(some))] for problem, some in by_problem.items()}
