"""Rows of what Triton's compiler and Numba make of points, on any host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from importlib import metadata

from kernels.contract import Gpu
from pipeline.inspection import programs
from pipeline.inspection.code_texts import Texts
from pipeline.inspection.known_code import KnownCode
from pipeline.inspection.lines import Sources
from pipeline.inspection.listing import of_ptx, of_sass
from pipeline.inspection.ptx import parse
from pipeline.inspection.sass import mix
from pipeline.inspection.usage import used
from pipeline.points import notation
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow


class LaunchedCode:
    """The rows of points whose functions are compiled as a call launches them: in Triton, Gluon and Numba."""

    def __init__(self, known: KnownCode, texts: Texts) -> None:
        self.scope = known.scope
        self.known = known
        self.texts = texts

    def rows(self, points: Sequence[Point]) -> list[CodeRow]:
        """A row for each program that a point launches, for each architecture."""
        asked = [
            (point, architecture)
            for architecture in self.scope.architectures
            for point in points
            if self.scope.provider(point).runs_on(_gpu(architecture)) is None
        ]
        found = {one: self.known.of_point(*one, self._compiler(one[0]), self.known.reader) for one in asked}
        for rows in found.values():
            self.texts.keep(rows or ())
        written: dict[str, str] = {}
        missing = [one for one in asked if found[one] is None]
        with closing(programs.compile_points(self.scope.loaded.where, missing)) as every:
            for one in every:
                found[one.point, one.architecture] = self._compiled(one, written)
        return [row for one in asked for row in found[one] or ()]

    def _compiler(self, point: Point) -> str:
        """What compiles a point's functions, with its version."""
        if self.scope.provider(point).language == "numba":
            return f"numba-cuda {metadata.version('numba-cuda')}"
        return f"triton {self.scope.identity.environment.triton}"

    def _compiled(self, compiled: programs.CompiledPoint, written: dict[str, str]) -> list[CodeRow]:
        """A row for each program of a point, or for why there are none. ``written``: the listings by what
        identifies a program, which those that are new join."""
        rows: list[CodeRow] = []
        point, architecture = compiled.point, compiled.architecture
        common = self.scope.common(point, architecture, self._compiler(point), self.known.reader)
        if compiled.error:
            rows.append(CodeRow(function="", error=compiled.error, **common))
        sources = Sources.of(self.scope.loaded)
        for number, program in enumerate(compiled.programs):
            row = CodeRow(
                function=program.analysis.symbol,
                launch_known=True,
                artifact=written.get(program.identity),
                **common,
                **used(
                    program.analysis.resources,
                    mix(program.analysis.instructions),
                    architecture,
                    program.threads,
                    program.shared,
                ),
            )
            if row.artifact is None:
                name = f"{notation.file_name(point)}-sm_{architecture}" + f"-{number + 1}" * (number > 0)
                entry = parse(program.texts["ptx"], sources)[program.analysis.symbol]
                parts = {
                    "ptx": of_ptx(entry, sources),
                    "sass": of_sass(program.analysis.instructions, sources),
                }
                row = self.texts.write(row, self.texts.free(name, program.identity), program.texts, parts)
                written[program.identity] = str(row.artifact)
            rows.append(row)
        return rows


def _gpu(architecture: str) -> Gpu:
    """What there is to say of a GPU of an architecture and no model: its compute capability."""
    return Gpu((int(architecture[:-1]), int(architecture[-1])), 0, 0, 0)
