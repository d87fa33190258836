"""Rows of generated code that an earlier run left: those stay that would come out the same."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import cache
from pathlib import Path

from pipeline import ROOT
from pipeline.inspection.code_scope import Scope
from pipeline.inspection.disassembler import find_tools
from pipeline.points import closure
from pipeline.points.frozen import digest
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow


@cache
def reader() -> str:
    """The digest of the code that makes rows, and of the tools' version: a row that was made by another says
    other things of the same function. Raises UserError where there are no tools."""
    folder = ROOT / "pipeline"
    stop = ("pipeline.execution", "pipeline.machine", "pipeline.points", "pipeline.toolchain", "kernels")
    entries = [(folder / "inspection" / "code_rows.py", "CodeRows")]
    found = closure.closure(entries, {"pipeline": folder}, stop)
    return digest([found.digest, find_tools().version])


class KnownCode:
    """The rows of an earlier run. One stays if nothing of it changed and its text is there; of those
    ``in_git`` the texts may be missing, unless they are asked for. ``kept`` counts those that stayed."""

    def __init__(self, scope: Scope, rows: Iterable[CodeRow], in_git: Container[CodeRow]) -> None:
        self.scope = scope
        self.kept = 0
        self._in_git: Container[CodeRow] = () if scope.shows else in_git
        self._rows: dict[tuple[Point | None, str | None, str | None], list[CodeRow]] = {}
        for row in rows:
            self._rows.setdefault((row.point, row.source, row.architecture), []).append(row)

    @property
    def reader(self) -> str:
        """The ``reader`` of this run."""
        return reader()

    def of_point(
        self, point: Point, architecture: str | None, compiler: str, basis: str, source: str | None = None
    ) -> list[CodeRow] | None:
        """The rows of a point, if all stay; None if it has to be looked into."""
        rows = self._rows.get((point, source, architecture), [])
        key = self.scope.identity.key(point)
        if not rows or not all(self._stays(row, key, compiler, basis) for row in rows):
            return None
        self.kept += len(rows)
        return rows

    def of_library(
        self, source: str, architecture: str, compiler: str, basis: str, modules: Sequence[Path]
    ) -> list[CodeRow] | None:
        """The rows of a library's functions, if all stay and the texts of its modules are there; None if it
        has to be taken apart."""
        rows = self._rows.get((None, source, architecture), [])
        stay = all(self._stays(row, None, compiler, basis) for row in rows)
        there = all(path.exists() for path in modules) or all(row in self._in_git for row in rows)
        if not (rows and stay and there):
            return None
        self.kept += len(rows)
        return rows

    def _stays(self, row: CodeRow, key: str | None, compiler: str, basis: str) -> bool:
        there = row.artifact is None or (self.scope.artifacts / row.artifact).is_file()
        return (there or row in self._in_git) and (row.key, row.compiler, row.basis) == (key, compiler, basis)
