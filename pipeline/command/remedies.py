"""DVC's reason why it can't go on, as a sentence with a command that helps in that case."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.store import commit

REASON = re.compile(
    r"ERROR: (?!failed to reproduce '.+': failed to run).+|error: .+"
    r"|'.+' is invalid\b.*|.*: No module named .+"
)
"""A line by which DVC, or a stage of it, says what is wrong."""

MARK = "<<<<<<< "


def explained(said: str, details: Sequence[str], root: Path) -> str:
    """A reason of DVC's in the repository ``root``, with a command that helps. ``details`` are the lines that
    followed, among which it says where in a file it stopped."""
    for pattern, sentence in KNOWN:
        if found := re.search(pattern, said):
            return sentence(found, details, root)
    return f"{_clause(said)}."


def _clause(said: str) -> str:
    return re.sub(r"^(ERROR|error): ", "", said).rstrip(".")


def _conflict(found: re.Match[str], details: Sequence[str], root: Path) -> str:
    """A file with the marks of a merge. Either side of a lock file will do: a run brings it up to date."""
    del details
    path = found[1].removeprefix("./")
    name = shlex.quote(path)
    if not path.endswith(".lock"):
        how = f"git diff -- {name} shows them, git add {name} ends the conflict"
    elif commit.is_unmerged(root / path):
        how = f"git checkout --ours -- {name} && git add {name} takes this branch's"
    elif any(line.startswith(MARK) for line in commit.committed_lines(root / path)):
        how = f"rm {name} lets the next run make it anew"
    else:
        how = f"git checkout HEAD -- {name} takes the committed one"
    return f"{path} holds the marks of a merge conflict: {how}."


def _invalid(found: re.Match[str], details: Sequence[str], root: Path) -> str:
    del root
    path = found[1].removeprefix("./")
    where = next((line.strip() for line in details if re.search(r"\bline \d+", line)), "")
    position = f" ({where})" if where else ""
    return f"{path} can't be read{position}: git diff HEAD -- {shlex.quote(path)} shows what was edited."


def _no_stage(found: re.Match[str], details: Sequence[str], root: Path) -> str:
    del details, root
    return f"there is no stage {found[1]}: python -m dvc stage list names them."


def _no_option(found: re.Match[str], details: Sequence[str], root: Path) -> str:
    del details, root
    return f"dvc repro has no {found[1]}: python -m dvc repro --help lists its options."


def _locked(found: re.Match[str], details: Sequence[str], root: Path) -> str:
    del details, root
    return (
        f"{_clause(found.string).partition('. ')[0]}: wait for the other dvc in this checkout, or end it; "
        "pgrep -af dvc shows whether there is one."
    )


def _no_module(found: re.Match[str], details: Sequence[str], root: Path) -> str:
    del details, root
    return f"the package {found[1]} is missing: make setup installs what is locked."


def _missing(found: re.Match[str], details: Sequence[str], root: Path) -> str:
    del details, root
    path = found[1]
    return f"{path} is missing: git checkout HEAD -- {shlex.quote(path)} brings it back."


def _no_repository(found: re.Match[str], details: Sequence[str], root: Path) -> str:
    del details
    why = commit.unreadable(root)
    return (
        f"{_clause(found.string)}{f', since {why}' if why else ': git checkout HEAD -- .dvc brings it back.'}"
    )


Sentence = Callable[[re.Match[str], Sequence[str], Path], str]

KNOWN: tuple[tuple[str, Sentence], ...] = (
    (r"'(.+)' is invalid \(possible merge conflicts\)", _conflict),
    (r"'(.+)' is invalid", _invalid),
    (r"Stage '(.+)' not found", _no_stage),
    (r"'(.+)' does not exist as an output or a stage name", _no_stage),
    (r"unrecognized arguments: (.+)", _no_option),
    (r"Unable to acquire lock|is busy, it is being blocked by", _locked),
    (r"No module named '?([\w.]+)", _no_module),
    (r"(?:missing data 'source':|dependency) '?(.+?)'?(?: does not exist|$)", _missing),
    (r"not inside of a DVC repository|is not a git repository|dubious ownership", _no_repository),
)
"""DVC 3's words, and this project's sentence for them."""
