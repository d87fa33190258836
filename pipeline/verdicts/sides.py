"""Sides of a comparison: trees with their own kernels or packages, measured by this tree's code.

A side takes only ``kernels/`` and ``conf/kernel/`` from its commit. This tree's code plans, builds, times and
verifies. A process in the side's tree finds the points to measure: ``python -m pipeline.verdicts.sides``
reads ``Questions`` and prints ``Replies``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from msgspec import field

from kernel_pipeline.declared import Value
from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.compile_pool import Libraries
from kernel_pipeline.execution.fork_server import Root
from kernel_pipeline.files import LOCAL
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.base import Record, ValidationError, digest
from kernel_pipeline.records.fields import Name, Text
from kernel_pipeline.records.measurement import Parts
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain.extension import Place

from .. import ROOT
from ..execution.side_process import SideProcess, as_lines
from ..keys.identity import Identity
from ..points import catalog
from ..points.plan import Target, plan
from ..store.worktree import worktree
from . import environments

OURS = ("kernel_pipeline", "pipeline", "conf")
"""The folders that a side's tree takes from this tree, except ``conf/kernel/``."""

SOURCES = ("kernels", "conf/kernel")
"""The folders that a side's tree takes from its commit."""


class Question(Record):
    """Ask a tree for the points of a kernel that it would measure, or to build the extensions of the
    providers in ``build``. With ``of_packages`` the keys cover all installed packages."""

    where: str
    preset: str
    device: str
    settings: TimingSettings
    seed: int
    providers: tuple[str, ...] | None = None
    pins: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    build: tuple[Name, ...] = ()
    of_packages: bool = False


class Planned(Record):
    """A point with its workload and the parts of its key."""

    point: Point
    workload: Name
    parts: Parts


class Answer(Record):
    """The points that a tree would measure. ``refusals`` are sentences about points that were left out.
    ``extensions`` names the providers with an extension to build. ``packages`` has the versions of the
    installed packages, if they were asked for. The answer to a question with ``build`` only has ``broken``,
    the reasons why a provider was not built. ``built`` is the folder of the libraries of a kernel outside of
    the repository."""

    kernel: Name
    baseline: Name
    planned: tuple[Planned, ...] = ()
    refusals: tuple[Text, ...] = ()
    extensions: tuple[Name, ...] = ()
    broken: dict[Name, Text] = field(default_factory=dict)
    built: Path | None = None
    packages: dict[Text, Text] = field(default_factory=dict)


class Reply(Record):
    """The answer to a question, or the error message in its place."""

    answer: Answer | None = None
    error: Text | None = None


def answer(question: Question) -> Answer:
    """Return the points that this tree would measure. Raises UserError as ``plan`` does."""
    entry = catalog.find(question.where)
    chosen = device.resolve(question.device)
    target = Target(chosen.kind, device.capabilities(chosen))
    found = plan(entry, question.preset, target, question.pins, question.providers)
    identity = Identity(entry.loaded, _fingerprint(chosen), question.settings, question.seed)
    named = dict.fromkeys(point.provider for point in found.points)
    packages = environments.installed() if question.of_packages else {}
    others = {name: packages[name] for name in sorted(packages.keys() - environments.IN_KEYS)}

    def parts(point: Point) -> Parts:
        made = identity.parts(point)
        return made.replace(environment=digest([made.environment, others])) if others else made

    return Answer(
        kernel=entry.name,
        baseline=entry.loaded.kernel.baseline,
        planned=tuple(
            Planned(point=point, workload=found.workloads[point], parts=parts(point))
            for point in found.points
        ),
        refusals=tuple(found.refusals()),
        extensions=tuple(name for name in named if entry.loaded.kernel.provider(name).extension),
        packages=packages,
    )


_fingerprint = cache(fingerprint)
"""A device's environment, which is the same for all kernels."""


def built(questions: Sequence[Question]) -> list[Answer]:
    """Build the extensions of all questions at the same time, and return the answers."""
    with Libraries(gives_way=False) as libraries:
        begun = []
        for question in questions:
            entry = catalog.find(question.where)
            sources = {name: str(entry.loaded.kernel.provider(name).extension) for name in question.build}
            begun.append((entry, sources, libraries.submit(entry.loaded, dict.fromkeys(sources.values()))))
        answers = []
        for entry, sources, futures in begun:
            failed = {name: futures[source].exception() for name, source in sources.items()}
            for error in failed.values():
                if error is not None and not isinstance(error, UserError):
                    raise error
            answers.append(
                Answer(
                    kernel=entry.name,
                    baseline=entry.loaded.kernel.baseline,
                    broken={name: str(error) for name, error in failed.items() if error is not None},
                    built=Place.for_kernel(entry.loaded).output if entry.loaded.is_outside else None,
                )
            )
    return answers


def replies(questions: Sequence[Question]) -> list[Reply]:
    """Return this tree's reply to each question. Either all of them build, or none."""
    if all(question.build for question in questions):
        return [Reply(answer=one) for one in built(questions)]
    found = []
    for question in questions:
        try:
            found.append(Reply(answer=answer(question)))
        except UserError as error:
            found.append(Reply(error=str(error)))
    return found


def begin(root: Path | Root, questions: Sequence[Question]) -> SideProcess:
    """Begin to ask another tree. ``ended`` returns its replies."""
    return SideProcess(root, f"{__package__}.sides", given=as_lines(questions))


def ended(process: SideProcess) -> list[Reply]:
    """Return another tree's reply to each question. Raises UserError if it can't read them."""
    said = process.output("listing the points failed without a message")
    return [Reply.from_json(line) for line in said.split("\n") if line]


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Yield a temporary tree with a commit's kernels and this tree's measuring code. It has this tree's
    libraries, which are used where their sources are equal.

    Raises UserError if the repository does not hold the commit, or the commit has no kernels.
    """
    if not (ROOT / "kernel_pipeline").is_dir():
        raise UserError(
            "the kernel comes with the installed package, and no commit of this project holds it: compare "
            "configurations of it, or commits of the project's own kernels."
        )
    with worktree(ROOT, commit) as root:
        if not (root / "conf" / "kernel").is_dir() or not (root / "kernels").is_dir():
            raise UserError(
                f"commit {commit[:12]} has no {' and '.join(SOURCES)}: "
                "compare commits that have both folders."
            )
        if not (root / "kernel_pipeline" / "contract.py").is_file():
            raise UserError(
                f"the kernels of commit {commit[:12]} import kernels.contract, which is now "
                "kernel_pipeline.contract: compare commits that have kernel_pipeline.contract."
            )
        kept = root / "kernel-of-commit"
        (root / "conf" / "kernel").rename(kept)
        for name in OURS:
            shutil.rmtree(root / name, ignore_errors=True)
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.rmtree(root / "conf" / "kernel")
        kept.rename(root / "conf" / "kernel")
        if (ROOT / "build").is_dir():
            shutil.copytree(ROOT / "build", root / "build", symlinks=True)
        # A CPU's keys name the host by a number of the checkout: both sides need the same one.
        host = LOCAL / "host"
        if host.exists():
            (root / "local").mkdir()
            shutil.copy(host, root / "local" / "host")
        yield root


@contextmanager
def folder_of(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    """Yield a temporary copy of a repository's folder as it is in a commit. Raises UserError if the
    repository does not hold the commit, or the commit has no such folder."""
    with worktree(repository, commit) as root:
        found = root / folder.resolve().relative_to(repository.resolve())
        if not found.is_dir():
            raise UserError(f"commit {commit[:12]} has no {folder.name}.")
        yield found


def main() -> None:
    """Answer the questions on standard input."""
    try:
        questions = [Question.from_json(line) for line in sys.stdin]
        print(as_lines(replies(questions)), end="")
    except (UserError, ValidationError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
