"""Sides of a comparison: trees with their own kernels, measured by this tree's code.

A side takes only ``kernels/`` and ``conf/kernel/`` from its commit. This tree's code plans, builds, times and
verifies. A process in the side's tree finds the points to measure: ``python -m pipeline.verdicts.sides``
reads a ``Question`` and prints an ``Answer``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import field

from kernel_pipeline.contract import Value
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.base import Record, ValidationError
from kernel_pipeline.records.fields import Name, Text
from kernel_pipeline.records.measurement import Parts
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import Place
from pipeline import ROOT
from pipeline.execution.identity import Identity
from pipeline.points import catalog
from pipeline.points.plan import Target, plan
from pipeline.store.results import LOCAL
from pipeline.store.worktree import worktree

OURS = ("kernel_pipeline", "pipeline", "conf")
"""The folders that a side's tree takes from this tree, except ``conf/kernel/``."""

SOURCES = ("kernels", "conf/kernel")
"""The folders that a side's tree takes from its commit."""


class Question(Record):
    """Ask a tree for the points of a kernel that it would measure."""

    where: str
    preset: str
    device: str
    settings: TimingSettings
    seed: int
    providers: tuple[str, ...] | None = None
    pins: dict[str, tuple[Value, ...]] = field(default_factory=dict)


class Planned(Record):
    """A point with its workload and the parts of its key."""

    point: Point
    workload: Name
    parts: Parts


class Answer(Record):
    """The points that a tree would measure and can build. ``refusals`` say what was left out, and ``broken``
    why providers were not built. ``built`` is the folder of the libraries of a kernel outside of the
    repository."""

    kernel: Name
    baseline: Name
    planned: tuple[Planned, ...]
    refusals: tuple[Text, ...]
    broken: dict[Name, Text]
    built: Path | None = None


def answer(question: Question) -> Answer:
    """Return the points that this tree would measure, and build their extensions. Raises UserError as
    ``plan`` does."""
    entry = catalog.find(question.where)
    chosen = device.resolve(question.device)
    target = Target(chosen.kind, device.capabilities(chosen))
    found = plan(entry, question.preset, target, question.pins, question.providers)
    identity = Identity(entry.loaded, fingerprint(chosen), question.settings, question.seed)
    broken = {}
    for name in dict.fromkeys(point.provider for point in found.points):
        source = entry.loaded.kernel.provider(name).extension
        try:
            if source is not None:
                extension.build(Place.for_kernel(entry.loaded), [source])
        except UserError as error:
            broken[name] = str(error)
    return Answer(
        kernel=entry.name,
        baseline=entry.loaded.kernel.baseline,
        planned=tuple(
            Planned(point=point, workload=found.workloads[point], parts=identity.parts(point))
            for point in found.points
            if point.provider not in broken
        ),
        refusals=tuple(found.refusals()),
        broken=broken,
        built=Place.for_kernel(entry.loaded).output if entry.loaded.is_outside else None,
    )


def ask(root: Path, question: Question) -> Answer:
    """Return the points that another tree would measure. Raises UserError with that tree's error message."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.verdicts.sides"],
        cwd=root,
        input=question.to_json().decode(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [
            f"listing the points of {root} failed without a message"
        ]
        raise UserError(said[0].removeprefix("error: "))
    return Answer.from_json(done.stdout)


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Yield a temporary tree with a commit's kernels and this tree's measuring code. It has this tree's
    libraries, which are used where their sources are equal.

    Raises UserError if the repository does not hold the commit, or the commit has no kernels.
    """
    with worktree(ROOT, commit) as root:
        if not (root / "conf" / "kernel").is_dir() or not (root / "kernels").is_dir():
            raise UserError(
                f"commit {commit[:12]} has no {' and '.join(SOURCES)}: "
                "compare commits that have both folders."
            )
        if not (root / "kernel_pipeline" / "contract.py").is_file():
            raise UserError(
                f"the kernels of commit {commit[:12]} import kernels.contract, which is now "
                "kernel_pipeline.contract: compare commits that have it."
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
    """Answer the question on standard input."""
    try:
        question = Question.from_json(sys.stdin.read())
        print(answer(question).to_json().decode())
    except (UserError, ValidationError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
