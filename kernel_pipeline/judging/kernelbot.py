"""KernelBot's format (gpu-mode/reference-kernels): the files of a task and of its submissions, read as data.

A task is a folder with ``task.yml``, whose text the caller parses, and the files that it names. Among these
is ``reference.py`` with ``generate_input``, ``ref_kernel`` and ``check_implementation``. A submission is a
file with ``custom_kernel``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown
from .formats import Problem, SubmissionFile, Workloads, scaled
from .imported import worded
from .sources import parsed, submission

TASK_FILE, REFERENCE_FILE = "task.yml", "reference.py"

FOLDER = "task"
"""The folder of a task's files in the kernel's folder."""

INPUT, KERNEL, CHECK, NEW = "generate_input", "ref_kernel", "check_implementation", "custom_kernel"

SEED = "seed"

LEAST = 128
"""Sizes below this number are not scaled, and no size is scaled below it. Tasks often require a multiple of
64 or 128."""

Workload = Mapping[str, Any]
"""The arguments of ``generate_input`` without the seed."""


@dataclass(frozen=True, kw_only=True)
class KernelBotTask(Problem):
    """A task: the files that it names, by their names, and its workloads."""

    sources: Mapping[str, Path]
    tests: Sequence[Workload]
    benchmarks: Sequence[Workload]

    def plan(self, pins: Mapping[str, int], scale: float) -> Workloads:
        """Return the tests, and the benchmarks with the pins."""
        names = {name: None for one in self.benchmarks for name, x in one.items() if type(x) is int}
        for name in pins:
            if name not in names:
                raise unknown(f"size of {self.name}", name, names)
        tests = [_scaled(one, scale) for one in self.tests]
        timed = [{**_scaled(one, scale), **pins} for one in self.benchmarks]
        try:
            made, literals = worded([*tests, *timed])
        except ValueError as error:
            raise UserError(f"{self.path / TASK_FILE}: a workload can't be read: {error}.") from error
        once = [tuple(dict.fromkeys(some)) for some in (made[: len(tests)], made[len(tests) :])]
        return Workloads(tests=once[0] or once[1], timed=once[1] or once[0][-1:], literals=literals)

    def files(self) -> dict[Path, str]:
        """Return the files that the task names."""
        named = {path: f"{FOLDER}/{name}" for name, path in self.sources.items()}
        return {**named, self.path / TASK_FILE: f"{FOLDER}/{TASK_FILE}"}

    def submission(self, path: Path) -> SubmissionFile:
        """Read a submission's file, which has a ``custom_kernel``."""
        tree = parsed(path)
        if NEW not in _bound(tree):
            raise UserError(
                f"{path}:1: there is no function {NEW}: a submission has {NEW}(data), which takes what "
                f"{INPUT} returns."
            )
        return submission(path, NEW, tree)


def task(
    folder: Path, sources: Mapping[str, Path], tests: Sequence[Workload], benchmarks: Sequence[Workload]
) -> KernelBotTask:
    """Return the task of a folder. Raises UserError, with file and line, for a ``reference.py`` that lacks
    one of its functions."""
    reference = sources[REFERENCE_FILE]
    tree = parsed(reference)
    for name in (INPUT, KERNEL, CHECK):
        if name not in _bound(tree):
            raise UserError(
                f"{reference}:1: there is no function {name}: the {REFERENCE_FILE} of a task has {INPUT}, "
                f"{KERNEL} and {CHECK}."
            )
    return KernelBotTask(
        name=folder.resolve().name,
        path=folder,
        code="kernelbot_code.KernelBotCode",
        own=SubmissionFile(reference, KERNEL),
        has_checker=True,
        has_own_check=True,
        # A checker that does not use the reference verifies a property, which several answers may have.
        has_answer=KERNEL in _reached(tree, CHECK),
        sources=sources,
        tests=[_without_seed(one) for one in tests],
        benchmarks=[_without_seed(one) for one in benchmarks],
    )


def _without_seed(workload: Workload) -> Workload:
    return {name: value for name, value in workload.items() if name != SEED}


def _scaled(workload: Workload, scale: float) -> dict[str, Any]:
    def made(value: Any) -> Any:
        if isinstance(value, list):
            return [made(one) for one in value]
        return scaled(value, scale, LEAST) if type(value) is int else value

    return {name: made(value) for name, value in workload.items()}


def _bound(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return the statements of a module that bind names, by name."""
    return {name: node for node in _statements(tree.body) for name in _names(node)}


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield a module's statements, including those in ``if``, ``try`` and ``with``."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            inner = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            handlers = [one.body for one in getattr(node, "handlers", [])]
            for block in (*inner, *handlers):
                yield from _statements(block)


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.ImportFrom):
        return [one.asname or one.name for one in node.names]
    return []


def _reached(tree: ast.Module, name: str) -> set[str]:
    """Return the names that the definition of a name uses, directly or by way of others."""
    bound, found, left = _bound(tree), set[str](), [name]
    while left:
        node = bound.get(left.pop())
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} if node is not None else set()
        left += used - found
        found |= used
    return found
