"""Disassemble a kernel's CUDA library into SASS and PTX of each function and architecture."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.fingerprint import find_nvcc
from kernel_pipeline.records.base import digest
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import Made, Place
from kernel_pipeline.toolchain.resources import BuildReport, made_today, resources, short

from .. import as_typed
from ..store.evidence import Mix
from .disassembler import Analysis, find_tools
from .ptx import PtxFunction, parse
from .sass import mix
from .sources import Sources

USUAL_THREADS = 256
"""The block size that is assumed for a function without launch bounds."""


@dataclass(frozen=True)
class CudaFunction:
    """A ``__global__`` function for one architecture. ``name`` has no namespaces; ``ptx`` is None if the
    library has no PTX of the function."""

    name: str
    architecture: str
    analysis: Analysis
    ptx: PtxFunction | None

    @property
    def template(self) -> str:
        """The name without template arguments."""
        return self.name.partition("<")[0]

    @cached_property
    def mix(self) -> Mix:
        """The number of its instructions by kind."""
        return mix(self.analysis.instructions)

    @property
    def most_threads(self) -> int:
        """The largest block that the function's launch bounds allow, in threads; USUAL_THREADS without
        bounds."""
        return (self.ptx and self.ptx.most_threads) or USUAL_THREADS


@dataclass(frozen=True)
class CudaLibrary:
    """The up-to-date library of one CUDA source. ``made`` are the inputs of its build. The library is built
    when its functions are first requested."""

    loaded: loading.Loaded
    source: str
    made: Made

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures for which the library has code."""
        return self.made.recipe.architectures

    @cached_property
    def compiler(self) -> str:
        """The name and version of its compiler, as in rows."""
        return f"nvcc {find_nvcc().version}"

    @cached_property
    def digest(self) -> str:
        """A digest of its inputs. It is the same in every clone, while the library's bytes may differ."""
        return digest(self.made.to_dict())

    @cached_property
    def path(self) -> Path:
        """The library's file, which is built if it is missing. Raises UserError if the build fails, or if its
        inputs differ from ``made``: rows would name the wrong inputs."""
        place = Place.for_kernel(self.loaded)
        built = extension.build(place, [self.source])[self.source]
        if extension.made_of(place, self.source) != self.made:
            makes = as_typed("build", f"kernel={self.loaded.where}")
            raise UserError(
                f"the library of {self.loaded.name}/{self.source} was built from other files than its "
                f"build report names: run `{makes}` for a new report, then run the command again."
            )
        return built.path

    @property
    def stem(self) -> str:
        """The source's name without a suffix. The names of its texts begin with it."""
        return Path(self.source).stem

    @cached_property
    def _names(self) -> dict[str, str]:
        return {
            row.symbol: known_name(row.function)
            for row in resources(Place.for_kernel(self.loaded), self.source)
        }

    @cached_property
    def _modules(self) -> dict[str, tuple[Path, Path | None]]:
        """The cubin and PTX of each architecture, in a folder that is removed with this object."""
        folder = Path(self._folder.name)
        cubins, modules = find_tools().extract(self.path, folder)
        ptx = {architecture_of(path): path for path in modules}
        return {name: (path, ptx.get(name)) for path in cubins for name in [architecture_of(path)]}

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory()

    def functions(self, architecture: str) -> tuple[list[CudaFunction], dict[str, str]]:
        """Return the functions for one of the library's architectures, sorted by name, and the texts of the
        whole module by file name. Raises UserError if the library can't be built, or without cuobjdump.
        """
        sources = Sources.for_kernel(self.loaded)
        cubin, ptx = self._modules[architecture]
        analyses, sass = find_tools().analyse(cubin, architecture, sources)
        module = ptx.read_text() if ptx is not None else ""
        entries = parse(module, sources)
        functions = [
            CudaFunction(self._names[one.symbol], architecture, one, entries.get(one.symbol))
            for one in analyses
        ]
        name = f"{self.stem}-sm_{architecture}"
        texts = {f"{name}.sass": sources.portable(sass), f"{name}.ptx": sources.portable(module)}
        return sorted(functions, key=lambda one: one.name), texts


def library_of(loaded: loading.Loaded, source: str, report: BuildReport | None = None) -> CudaLibrary:
    """Return the library of a kernel's CUDA source.

    The inputs come from the build report if it has the current source. Otherwise the library is built if it
    is missing or out of date. Raises UserError without nvcc.
    """
    place = Place.for_kernel(loaded)
    made = made_today(place, source, report) if report is not None else None
    if made is None:
        extension.build(place, [source])
        made = extension.made_of(place, source)
    return CudaLibrary(loaded, source, made)


def architecture_of(path: Path) -> str:
    """Return the compute capability in the name of a file that cuobjdump wrote: ``90`` for
    ``cuda.sm_90a.cubin``."""
    match = re.search(r"\.sm_(\d+)[af]?\.\w+$", path.name)
    assert match, f"cuobjdump wrote {path.name}, which names no architecture"
    return match[1]


def known_name(function: str) -> str:
    """Return a function's name in one form for all tools: no namespaces, booleans as 1 and 0, no space before
    ``>``.

    ``void softmax::rows<c10::Half, (int)4, true>(...)`` becomes ``rows<Half, 4, 1>``. ncu spells an anonymous
    namespace ``<unnamed>``. CUPTI closes nested templates with ``> >``, cu++filt with ``>>``.
    """
    plain = re.sub(r"(?:\w+|<unnamed>)::", "", short(function)).replace(" >", ">")
    return re.sub(r"\bfalse\b", "0", re.sub(r"\btrue\b", "1", plain))
