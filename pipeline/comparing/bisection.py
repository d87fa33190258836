"""Find the first commit, or the first version of a package, that is slower than an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kernel_pipeline.errors import UserError

from ..points.catalog import Entry
from ..store import commit
from ..verdicts import environments
from ..verdicts.opponents import Named, repository, sources

T = TypeVar("T")


def between(entry: Entry, good: Named, bad: Named, tell: environments.Tell) -> list[Named]:
    """Return the commits, or the versions of a package, from ``good``, exclusive, to ``bad``, inclusive: the
    oldest first. Raises UserError unless ``good`` comes before ``bad``."""
    if "environments" in (good.kind, bad.kind):
        return [Named(text) for text in environments.versions(good.text, bad.text, tell)]
    return [Named(name, name) for name in _commits_between(entry, good, bad)]


def _commits_between(entry: Entry, good: Named, bad: Named) -> list[str]:
    """Return the commits from ``good``, exclusive, to ``bad``, inclusive, that change the kernel's sources:
    along first parents, the oldest first. Raises UserError unless ``good`` is an ancestor of ``bad``."""
    root = repository(entry)
    if not good.commit or not bad.commit:
        raise UserError("bisect=true searches between two commits: write a=GOOD b=BAD.")
    if commit.git(root, "merge-base", "--is-ancestor", good.commit, bad.commit) is None:
        raise UserError(f"a={good.text} is no ancestor of b={bad.text}: write the older commit as a.")
    line = f"{good.commit}..{bad.commit}"
    found = commit.git(root, "rev-list", "--reverse", "--first-parent", line, "--", *sources(entry))
    return (found or "").splitlines()


def first_slower(line: Sequence[T], is_slower: Callable[[T], bool | None]) -> Sequence[T]:
    """Return the first slower side of a line, or several candidates if sides between them could not be
    judged. Returns an empty sequence if the last side is not slower.

    ``is_slower`` judges a side, and returns None if it can't: then the nearest other side is tried. It is
    called about log2(n) times for n sides.
    """
    if not line or not is_slower(line[-1]):
        return ()
    good, bad = -1, len(line) - 1
    unknown: set[int] = set()
    while left := [place for place in range(good + 1, bad) if place not in unknown]:
        place = min(left, key=lambda one: abs(2 * one - good - bad))
        judged = is_slower(line[place])
        if judged is None:
            unknown.add(place)
        elif judged:
            bad = place
        else:
            good = place
    return line[good + 1 : bad + 1]


def described(entry: Entry, found: Named) -> str:
    """Return a commit's hash, date and message, and its changes of the kernel's sources by file. Returns the
    text of an environment."""
    if not found.commit:
        return found.text
    words = ("show", "--stat", "--format=%h %as %s%n%b", found.commit, "--")
    return commit.git(repository(entry), *words, *sources(entry)) or found.text


def before(entry: Entry, good: Named, line: Sequence[Named], found: Named) -> Named:
    """Return a commit's first parent, or the version before a version of the line, which begins after
    ``good``."""
    if not found.commit:
        return [good, *line][line.index(found)]
    return Named(f"{found.text}~1", commit.git(repository(entry), "rev-parse", f"{found.commit}~1"))
