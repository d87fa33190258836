"""Rows of generated code and their texts: made where they are missing or old, kept where nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from pipeline.inspection import inductor_code
from pipeline.inspection.code_scope import LAUNCHED, Scope
from pipeline.inspection.code_texts import Texts
from pipeline.inspection.cuda_code import CudaCode
from pipeline.inspection.known_code import KnownCode
from pipeline.inspection.launched_code import LaunchedCode
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow


class CodeRows:
    """The rows of some points. ``known`` and ``in_git`` are rows of an earlier run, as ``KnownCode`` takes
    them. ``warn`` gets a sentence about what is left out."""

    def __init__(
        self,
        scope: Scope,
        known: Iterable[CodeRow],
        in_git: Container[CodeRow],
        warn: Callable[[str], None],
    ) -> None:
        self.scope = scope
        self.warn = warn
        self.known = KnownCode(scope, known, in_git)
        self.texts = Texts(scope)

    def rows(self, points: Sequence[Point], shown: Sequence[Point]) -> list[CodeRow]:
        """All rows of the points, in an order that does not depend on which were kept; ``shown`` are the
        points at which compiled providers are looked into."""
        launched = [point for point in points if self.scope.provider(point).language in LAUNCHED]
        cuda = [point for point in points if self.scope.provider(point).language == "cuda"]
        rows = LaunchedCode(self.known, self.texts).rows(launched)
        rows += CudaCode(self.known, self.texts, self.warn).rows(cuda, alone=not launched and not shown)
        compiled = (inductor_code.row(self.known, self.texts, point, self.warn) for point in shown)
        return rows + [row for row in compiled if row is not None]
