"""The verdicts on many submissions, kept by the content of everything that they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from kernel_pipeline import files, json_lines, judging
from kernel_pipeline.errors import UserError
from kernel_pipeline.execution import answers
from kernel_pipeline.judging.formats import Problem, Workloads
from kernel_pipeline.records.base import Record, Values, digest
from kernel_pipeline.records.fields import Name, Text, When

from ..execution.session import Session
from ..keys import versions
from .judged import Judged, Verdict

FILE = "board.jsonl"

RANKS: tuple[Verdict, ...] = ("correct", "can't be judged", "incorrect", "cheats")


class BoardEntry(Record):
    """A kept verdict. ``key`` is a digest of the files, the workloads, the machine, the options and the code
    that the verdict depends on."""

    key: Text
    problem: Text
    workloads: tuple[Values, ...]
    gpu: Name
    isolation: Text
    at: When
    judged: Judged


@dataclass(frozen=True)
class Board:
    """The board of a problem with these workloads on one machine. ``options`` are further options that a
    verdict depends on."""

    path: Path
    problem: Problem
    plan: Workloads
    session: Session
    options: Any

    def key(self, submission: Path) -> str:
        """Return the key of the verdict on a submission."""
        return digest([_content(submission), self._shared])

    @cached_property
    def _shared(self) -> list[Any]:
        """The parts of the keys of all submissions."""
        session, problem = self.session, self.problem
        names = ("judged.py", "other_sizes.py", "trial.py", "trial_times.py")
        own = [Path(__file__).with_name(name) for name in names]
        code = [*sorted(Path(judging.__file__).parent.glob("*.py")), *own, Path(answers.__file__)]
        return [
            *map(_content, code),
            {file: _content(path) for path, file in problem.files().items()},
            dict(problem.texts()),
            [[dict(one) for one in some] for some in (self.plan.tests, self.plan.timed)],
            session.environment.digest,
            session.device.slug,
            session.timing.to_dict(),
            [session.seed, session.timeout_s],
            versions.measurement(session.device.kind, session.timing.timer),
            self.options,
        ]

    def known(self, warn: Callable[[str], None]) -> dict[str, BoardEntry]:
        """Return the kept verdicts of the problem's board, by key."""
        return {entry.key: entry for entry in read(self.path, warn)}

    def entry(self, key: str, judged: Judged, isolation: str) -> BoardEntry:
        """Return the entry of a verdict."""
        return BoardEntry(
            key=key,
            problem=str(self.problem.path),
            workloads=self.plan.all,
            gpu=self.session.device.slug,
            isolation=isolation,
            at=datetime.now(UTC),
            judged=judged,
        )

    def keep(self, entry: BoardEntry) -> None:
        """Keep an entry, unless another try may give another verdict."""
        if entry.judged.verdict != "can't be judged":
            files.append(self.path, entry.line())


def submissions(folder: Path, problem: Problem) -> tuple[list[Path], list[Judged]]:
    """Return the submissions in a folder, and a verdict on each file that has their ending and is none.
    Raises UserError if the folder has no such file."""
    ending = problem.own.path.suffix
    paths = sorted(folder.glob(f"*{ending}"))
    if not paths:
        raise UserError(f"{folder} is not a folder with submissions: it has no {ending} file.")
    found, wrong = [], []
    for path in paths:
        try:
            problem.submission(path)
            found.append(path)
        except UserError as error:
            wrong.append(not_in_format(path, error))
    return found, wrong


def not_in_format(path: Path, error: UserError) -> Judged:
    """Return the verdict on a file that is not in the format, as this error says."""
    return Judged(submission=str(path), verdict="incorrect", reason=str(error).rstrip("."))


def read(path: Path, warn: Callable[[str], None]) -> list[BoardEntry]:
    """Return the entries of a file, the oldest first."""
    return json_lines.read(
        path, BoardEntry.from_json, json_lines.warning(path, warn, "is no verdict; it is skipped.")
    )


def ranked(entries: Iterable[BoardEntry]) -> list[BoardEntry]:
    """Return the last entry of each submission, the fastest correct one first, and equals by name."""

    def place(one: BoardEntry) -> tuple[int, float, str]:
        judged = one.judged
        return RANKS.index(judged.verdict), -judged.reward, judged.submission

    return sorted({entry.judged.submission: entry for entry in entries}.values(), key=place)


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
