"""The row of what torch.compile generated at a point."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress

import torch

from pipeline import UserError
from pipeline.inspection import inductor, programs, unmeasured
from pipeline.inspection.code_scope import Scope
from pipeline.inspection.code_texts import Texts
from pipeline.inspection.known_code import KnownCode
from pipeline.inspection.lines import Sources
from pipeline.points import notation
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow
from pipeline.store.files import write_atomically


def row(known: KnownCode, texts: Texts, point: Point, warn: Callable[[str], None]) -> CodeRow | None:
    """The row for what torch.compile generated at a point; its source is kept. None where an earlier run left
    none and nothing may be called."""
    scope = known.scope
    native = scope.native
    compiler = f"torch {scope.identity.environment.torch}"
    kept = known.of_point(point, native, compiler, known.reader)
    if kept is not None:
        texts.keep(kept)
        return kept[0]
    if scope.offline:
        return None
    common = scope.common(point, native, compiler, known.reader) | {"language": "inductor"}
    try:
        text = _generated(scope, point, warn)
    except UserError:
        raise  # the device is taken
    except Exception as error:  # Inductor may raise anything; the other rows stay
        return CodeRow(function="", error=programs.one_line(error), **common)
    name = texts.free(notation.file_name(point), "inductor")
    path = scope.folder / f"{name}.py"
    write_atomically(path, Sources.of(scope.loaded).portable(text).encode())
    names = ", ".join(inductor.kernel_names(text))
    return CodeRow(function=names, artifact=texts.below(path), **common)


def _generated(scope: Scope, point: Point, warn: Callable[[str], None]) -> str:
    """Inductor's source at a point. What fails beside other processes, for which there may be no memory left
    then, is tried again alone."""
    scope.see_alone()
    importlib.import_module("torch._inductor.compile_fx")  # seconds, for which nobody should wait
    device = torch.device(scope.device.kind)
    where, seed = scope.loaded.where, scope.identity.seed
    if device.type == "cuda":
        with suppress(RuntimeError), unmeasured.calls(scope, warn):
            return inductor.generated(where, point, device, seed)
    with unmeasured.calls(scope, warn, alone=True):
        return inductor.generated(where, point, device, seed)
