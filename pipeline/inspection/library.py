"""The CUDA functions in a kernel's library, taken apart: SASS and PTX of each, by architecture."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.inspection.disassembler import Analysis, find_tools
from pipeline.inspection.ptx import Entry, parse
from pipeline.machine.compilers import find_nvcc
from pipeline.toolchain import extension
from pipeline.toolchain.resources import resources, short


@dataclass(frozen=True)
class CudaFunction:
    """One ``__global__`` function for one architecture, by the name people know it by; ``ptx`` is None where
    the library holds none."""

    name: str
    architecture: str
    analysis: Analysis
    ptx: Entry | None


@dataclass(frozen=True)
class CudaLibrary:
    """Its functions, the whole modules' texts by file name, and all architectures that it was built for."""

    functions: tuple[CudaFunction, ...]
    texts: dict[str, str]
    compiler: str
    architectures: tuple[str, ...]


def functions_of(kernel: str, architectures: Sequence[str]) -> CudaLibrary:
    """The functions of a kernel's CUDA source for those of the architectures that its library was built for;
    builds it where it is missing or out of date.

    Raises UserError where it can't be built (no nvcc) or read (no cuobjdump).
    """
    tools = find_tools()
    library = extension.build(kernel, [extension.CUDA_SOURCE])[extension.CUDA_SOURCE]
    names = {row.symbol: known_name(row.function) for row in resources(kernel)}
    functions: list[CudaFunction] = []
    texts: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        cubins, modules = tools.extract(library.path, Path(folder))
        ptx = {architecture_of(path): path for path in modules}
        for cubin in cubins:
            architecture = architecture_of(cubin)
            if architecture not in architectures:
                continue
            analyses, sass = tools.analyse(cubin, architecture)
            module = ptx[architecture].read_text() if architecture in ptx else ""
            entries = parse(module)
            texts |= {f"cuda-sm_{architecture}.sass": sass, f"cuda-sm_{architecture}.ptx": module}
            functions += [
                CudaFunction(names[one.symbol], architecture, one, entries.get(one.symbol))
                for one in analyses
            ]
    functions.sort(key=lambda one: (len(one.architecture), one.architecture, one.name))
    return CudaLibrary(tuple(functions), texts, f"nvcc {find_nvcc().version}", library.architectures)


def architecture_of(path: Path) -> str:
    """The compute capability in the name that cuobjdump gives a file: ``cuda.sm_90.cubin``."""
    match = re.search(r"sm_(\w+)", path.name)
    assert match, f"cuobjdump wrote {path.name}, which names no architecture"
    return match[1]


def known_name(function: str) -> str:
    """A function's name as every tool would write it: no namespaces, booleans as 1 and 0, no space before a
    ``>``.

    ``void softmax::rows<c10::Half, (int)4, true>(...)`` becomes ``rows<Half, 4, 1>``. ncu spells a namespace
    without a name ``<unnamed>``; CUPTI ends a template in a template with ``> >``, cu++filt with ``>>``.
    """
    plain = re.sub(r"(?:\w+|<unnamed>)::", "", short(function)).replace(" >", ">")
    return re.sub(r"\bfalse\b", "0", re.sub(r"\btrue\b", "1", plain))
