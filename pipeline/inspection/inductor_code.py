"""The row of what torch.compile generated at a point."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pipeline import UserError
from pipeline.inspection import inductor, programs
from pipeline.inspection.code_texts import Texts
from pipeline.inspection.known_code import KnownCode
from pipeline.inspection.lines import Sources
from pipeline.machine.lock import DeviceLock
from pipeline.points import notation
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow
from pipeline.store.files import write_atomically


def row(known: KnownCode, texts: Texts, point: Point, warn: Callable[[str], None]) -> CodeRow:
    """The row for what torch.compile generated at a point; its source is kept."""
    scope = known.scope
    native = scope.native
    compiler = f"torch {scope.identity.environment.torch}"
    kept = known.of_point(point, native, compiler, known.reader)
    if kept is not None:
        texts.keep(kept)
        return kept[0]
    common = scope.common(point, native, compiler, known.reader) | {"language": "inductor"}
    scope.see_alone()
    try:
        with DeviceLock(scope.device, scope.wait_s, warn):
            text = inductor.generated(
                scope.loaded.where,
                point,
                torch.device(scope.device.kind),
                scope.identity.seed,
            )
    except UserError:
        raise  # the device is taken
    except Exception as error:  # Inductor may raise anything; the other rows stay
        return CodeRow(function="", error=programs.one_line(error), **common)
    name = texts.free(notation.file_name(point), "inductor")
    path = scope.folder / f"{name}.py"
    write_atomically(path, Sources.of(scope.loaded).portable(text).encode())
    names = ", ".join(inductor.kernel_names(text))
    return CodeRow(function=names, artifact=texts.below(path), **common)
