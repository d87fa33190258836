"""What torch.compile makes of a provider: the source that Inductor generated, and the row of it."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from pipeline import UserError
from pipeline.execution import instance
from pipeline.inspection import code_target, programs
from pipeline.inspection.code_target import CodeTarget, KnownCode, Texts
from pipeline.inspection.sources import Sources
from pipeline.points import notation
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow
from pipeline.store.files import write_atomically
from pipeline.toolchain.inductor import variables


def generated(where: str, point: Point, device: torch.device, seed: int) -> str:
    """The Python module that Inductor generated for a compiled provider at a point of the kernel that
    ``where`` names; it holds the kernels as Triton source on a GPU and as C++ on a CPU. Compiles and runs the
    provider once.

    Raises whatever the provider or Inductor raises.
    """
    os.environ |= variables()
    from torch._inductor.utils import run_and_get_code

    found = instance.standalone(where, point)
    _, sources = run_and_get_code(found.call, *found.inputs(device, seed))
    return "\n\n".join(sources)


def kernel_names(source: str) -> Sequence[str]:
    """The names of the kernels that an Inductor module defines, in their order."""
    found = re.findall(r"^(\w+) = async_compile\.\w+\(", source, re.MULTILINE)
    return list(dict.fromkeys(found))


def row(known: KnownCode, texts: Texts, point: Point, warn: Callable[[str], None]) -> CodeRow:
    """The row for what torch.compile generated at a point; its source is kept."""
    target = known.target
    native = target.native
    compiler = f"torch {target.identity.environment.torch}"
    kept = known.of_point(point, native, compiler, known.reader)
    if kept is not None:
        texts.keep(kept)
        return kept[0]
    common = target.common(point, native, compiler, known.reader) | {"language": "inductor"}
    try:
        text = _generated(target, point, warn)
    except UserError:
        raise  # the device is taken
    except Exception as error:  # Inductor may raise anything; the other rows stay
        return CodeRow(function="", error=programs.one_line(error), **common)
    name = texts.free(notation.file_name(point), "inductor")
    path = target.folder / f"{name}.py"
    write_atomically(path, Sources.of(target.loaded).portable(text).encode())
    names = ", ".join(kernel_names(text))
    return CodeRow(function=names, artifact=texts.below(path), **common)


def _generated(target: CodeTarget, point: Point, warn: Callable[[str], None]) -> str:
    """Inductor's source at a point. What fails beside other processes, for which there may be no memory left
    then, is tried again alone."""
    target.see_alone()
    importlib.import_module("torch._inductor.compile_fx")  # seconds, for which nobody should wait
    device = torch.device(target.device.kind)
    where, seed = target.loaded.where, target.identity.seed
    if device.type == "cuda":
        with suppress(RuntimeError), code_target.calls(target, warn):
            return generated(where, point, device, seed)
    with code_target.calls(target, warn, alone=True):
        return generated(where, point, device, seed)
