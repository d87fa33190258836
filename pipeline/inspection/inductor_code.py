"""torch.compile's code for a provider: the source that Inductor generates, and its row."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.records.point import Point
from kernel_pipeline.toolchain.inductor import variables
from pipeline.inspection import code_target, programs
from pipeline.inspection.code_target import Basis, CodeTarget, Texts, reader
from pipeline.inspection.sources import Sources
from pipeline.points import notation
from pipeline.store.evidence import CodeRow


def generated(where: str, point: Point, device: str, seed: int) -> str:
    """The Python module that Inductor generates for a compiled provider at a point of the kernel ``where``:
    Triton source on a GPU, C++ on a CPU. Compiles and runs the provider once, and raises whatever the
    provider or Inductor raises."""
    os.environ |= variables()
    import torch
    from torch._inductor.utils import run_and_get_code

    from pipeline.execution import instance

    found = instance.standalone(where, point)
    _, sources = run_and_get_code(found.call, *found.inputs(torch.device(device), seed))
    return "\n\n".join(sources)


def kernel_names(source: str) -> Sequence[str]:
    """The names of the kernels that an Inductor module defines, in their order."""
    found = re.findall(r"^(\w+) = async_compile\.\w+\(", source, re.MULTILINE)
    return list(dict.fromkeys(found))


def _compiler(target: CodeTarget) -> str:
    return f"torch {target.identity.environment.torch}"


def basis(target: CodeTarget, point: Point) -> Basis:
    """The basis of a point's row."""
    return target.identity.key(point), None, target.native, _compiler(target), reader()


def row(target: CodeTarget, texts: Texts, point: Point, warn: Callable[[str], None]) -> CodeRow:
    """The row for torch.compile's code at a point; writes the source among the texts."""
    common = target.common(point, target.native, _compiler(target), reader()) | {"language": "inductor"}
    try:
        text = _generated(target, point, warn)
    except UserError:
        raise  # another command holds the device
    except Exception as error:  # Inductor may raise anything; the other rows stay
        return CodeRow(function="", error=programs.one_line(error), **common)
    name = texts.free(notation.file_name(point), "inductor")
    path = target.folder / f"{name}.py"
    write_atomically(path, Sources.for_kernel(target.loaded).portable(text).encode())
    return CodeRow(function=", ".join(kernel_names(text)), artifact=texts.below(path), **common)


def _generated(target: CodeTarget, point: Point, warn: Callable[[str], None]) -> str:
    """Inductor's source at a point. A compilation that fails beside other processes, which may hold its
    memory, is tried again alone."""
    target.see_alone()
    importlib.import_module("torch._inductor.compile_fx")  # takes seconds, so before the device is locked
    kind = target.device.kind
    where, seed = target.loaded.where, target.identity.seed
    if kind == "cuda":
        with suppress(RuntimeError), code_target.calls(target, warn):
            return generated(where, point, kind, seed)
    with code_target.calls(target, warn, alone=True):
        return generated(where, point, kind, seed)
