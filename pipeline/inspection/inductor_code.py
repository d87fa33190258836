"""Write the source that Inductor generates for a torch.compile provider, and make its row."""

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

from ..points import notation
from ..store.evidence import CodeRow
from . import code_target, programs
from .code_target import Basis, CodeTarget, Texts, reader
from .sources import Sources


def generated(where: str, point: Point, device: str, seed: int) -> str:
    """Return the Python module that Inductor generates for a point of the kernel ``where``, whose provider
    torch.compile compiles. It contains Triton source on a GPU and C++ on a CPU.

    Compiles and runs the provider once. Raises whatever the provider or Inductor raises."""
    os.environ |= variables()
    import torch
    from torch._inductor.utils import run_and_get_code

    from kernel_pipeline.execution import instance

    found = instance.standalone(where, point)
    _, sources = run_and_get_code(found.call, *found.inputs(torch.device(device), seed))
    return "\n\n".join(sources)


def kernel_names(source: str) -> Sequence[str]:
    """Return the names of the kernels that an Inductor module defines, in order."""
    found = re.findall(r"^(\w+) = async_compile\.\w+\(", source, re.MULTILINE)
    return list(dict.fromkeys(found))


def _compiler(target: CodeTarget) -> str:
    return f"torch {target.identity.environment.torch}"


def basis(target: CodeTarget, point: Point) -> Basis:
    """Return the basis of a point's row."""
    return target.identity.key(point), None, target.native, _compiler(target), reader()


def row(target: CodeTarget, texts: Texts, point: Point, warn: Callable[[str], None]) -> CodeRow:
    """Write the source that Inductor generates at a point among the texts, and return its row."""
    common = target.common(point, target.native, _compiler(target), reader()) | {"language": "inductor"}
    try:
        text = _generated(target, point, warn)
    except UserError:
        raise  # another command holds the device
    except Exception as error:  # Inductor may raise anything; record it in the row
        return CodeRow(function="", error=programs.one_line(error), **common)
    name = texts.free(notation.file_name(point), "inductor")
    path = target.folder / f"{name}.py"
    write_atomically(path, Sources.for_kernel(target.loaded).portable(text).encode())
    return CodeRow(function=", ".join(kernel_names(text)), artifact=texts.below(path), **common)


def _generated(target: CodeTarget, point: Point, warn: Callable[[str], None]) -> str:
    """Return Inductor's source at a point. Other processes may hold memory that the call needs, so a failed
    compilation is tried again with the device locked exclusively."""
    target.see_alone()
    importlib.import_module("torch._inductor.compile_fx")  # takes seconds: do it before locking the device
    kind = target.device.kind
    where, seed = target.loaded.where, target.identity.seed
    if kind == "cuda":
        with suppress(RuntimeError), code_target.calls(target, warn):
            return generated(where, point, kind, seed)
    with code_target.calls(target, warn, alone=True):
        return generated(where, point, kind, seed)
