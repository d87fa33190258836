"""The target of ``codegen``: a kernel on a device, and the values that its rows and texts (PTX, SASS,
listings) share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernel_pipeline.contract import Provider
from kernel_pipeline.files import write_atomically
from kernel_pipeline.loading import Loaded
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.point import Point
from kernel_pipeline.toolchain.resources import BuildReport

from ..keys.identity import Identity
from ..store.evidence import CodeRow, Mix, joined
from .disassembler import Resources, find_tools
from .library import CudaLibrary
from .listing import heading
from .occupancy import occupancy
from .sources import Sources

READER = 2
"""The version of the code that makes rows. Increase it when the same functions give other rows."""

LAUNCHED = ("triton", "gluon", "numba")
"""The languages that Triton's compiler or Numba compiles at launch."""


def has_code(provider: Provider) -> bool:
    """Return whether a provider has code to show: our own Triton, Gluon, Numba or CUDA, or Inductor's."""
    return provider.compiled or (provider.is_own and provider.language in (*LAUNCHED, "cuda"))


@dataclass(frozen=True)
class CodeTarget:
    """A kernel on a device, and the architectures to compile for.

    ``function`` selects the CUDA functions whose name contains it. Texts are written to ``folder`` below
    ``artifacts``. ``built`` is the report of an earlier build; it has a library's inputs without building the
    library."""

    loaded: Loaded
    identity: Identity
    device: Device
    architectures: tuple[str, ...]
    function: str | None
    artifacts: Path
    wait_s: float | None
    built: BuildReport | None = None

    @property
    def folder(self) -> Path:
        """The folder of this kernel's PTX, SASS and listings on this machine."""
        return self.artifacts / "codegen" / self.loaded.name / self.device.slug

    @property
    def native(self) -> str | None:
        """The architecture of this machine's GPU."""
        capability = self.identity.environment.compute_capability
        return capability and capability.replace(".", "")

    def provider(self, point: Point) -> Provider:
        """Return the provider of a point."""
        return self.loaded.kernel.provider(point.provider)

    def see_alone(self) -> None:
        """Hide all GPUs except the target's from this process."""
        if self.device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.device.uuid

    def common(self, point: Point, architecture: str | None, compiler: str, basis: str) -> dict[str, Any]:
        """Return the fields that all rows of a point share."""
        return {
            **joined(point, self.identity.key(point)),
            "language": self.provider(point).language,
            "architecture": architecture,
            "native": architecture is not None and architecture == self.native,
            "compiler": compiler,
            "environment": self.identity.environment.digest,
            "basis": basis,
        }


@cache
def reader() -> str:
    """Return a digest of the versions of the code and the tools that make rows. Raises UserError without
    cuobjdump and nvdisasm."""
    return digest([READER, find_tools().version])


Basis = tuple[str | None, str | None, str | None, str, str]
"""The inputs of a row: key of the point, source of the library, architecture, compiler, and a digest of the
remaining inputs. A row with an equal basis need not be made again."""


def basis_of(row: CodeRow) -> Basis:
    """Return the basis of a row that an earlier run wrote."""
    return row.key, row.source, row.architecture, row.compiler, row.basis


LONGEST_NAME = 150
"""The maximum number of characters of a text's name. File systems allow 255 bytes; a C++ template's name may
be longer."""


class Texts:
    """The names of the texts that belong to wanted rows. ``remove_others`` removes all other files."""

    def __init__(self, target: CodeTarget) -> None:
        self.target = target
        self._names: dict[str, str] = {}

    def keep(self, rows: Iterable[CodeRow]) -> None:
        """Keep the texts of existing rows that are reused."""
        for row in rows:
            self._names[_stem(row.artifact)] = ""

    def keep_named(self, name: str, identity: str) -> None:
        """Reserve a name, which must be unique, for the text of the code with this identity."""
        self._names[name] = identity

    def free(self, name: str, identity: str) -> str:
        """Return a name for the text of the code with this identity. No other code has the same name."""
        short = _short(name)
        if self._names.setdefault(short, identity) != identity:
            short = f"{short}-{identity[:8]}"
            self._names[short] = identity
        return short

    def write(
        self, row: CodeRow, name: str, texts: Mapping[str, str], parts: Mapping[str, Sequence[str]]
    ) -> CodeRow:
        """Write a function's texts and listing. Returns the row with the listing's path."""
        sources = Sources.for_kernel(self.target.loaded)
        for kind, text in texts.items():
            write_atomically(self.target.folder / f"{name}.{kind}", sources.portable(text).encode())
        lines = heading(row)
        for kind, part in parts.items():
            lines += ["", f"== {kind.upper()}", *part]
        path = self.path(name)
        write_atomically(path, ("\n".join(lines) + "\n").encode())
        return row.replace(artifact=self.below(path))

    def path(self, name: str) -> Path:
        """Return the path of the listing with that name."""
        return self.target.folder / f"{name}.txt"

    def below(self, path: Path) -> str:
        """Return a text's path relative to the folder of artifacts."""
        return str(path.relative_to(self.target.artifacts))

    def remove_others(self) -> None:
        """Remove all files of the folder except the texts of the wanted rows."""
        for path in self.target.folder.glob("*"):
            if path.is_file() and path.name.rpartition(".")[0] not in self._names:
                path.unlink()


def text_names(library: CudaLibrary, functions: Iterable[str], architecture: str) -> dict[str, str]:
    """Return names for the texts of CUDA functions. A name has the words of the C++ name, and its digest if
    several functions have the same words."""
    plain = {name: "-".join([library.stem, *_words(name), f"sm_{architecture}"]) for name in functions}
    several = {name for name in plain.values() if list(plain.values()).count(name) > 1}
    return {
        function: _short(f"{name}-{digest(function)[:8]}" if name in several else name)
        for function, name in plain.items()
    }


def _stem(artifact: str | None) -> str:
    return Path(artifact or "").name.rpartition(".")[0]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 17]}-{digest(name)}"


def _words(name: str) -> list[str]:
    """Split a C++ name into its words."""
    return "".join(c if c.isalnum() or c == "_" else " " for c in name).split()


def used(resources: Resources, mix: Mix, architecture: str, threads: int, shared: int) -> dict[str, Any]:
    """Return the numbers of a CodeRow for a function and its launch. ``threads`` is the block size,
    ``shared`` the dynamic shared memory in bytes."""
    total = resources.shared + shared
    limits = occupancy(architecture, resources.registers, total, threads)
    return {
        "registers": resources.registers,
        "shared": total,
        "stack": resources.stack,
        "threads": threads,
        "mix": mix,
        **(limits.to_dict() if limits else {}),
    }


@contextmanager
def calls(target: CodeTarget, warn: Callable[[str], None], *, alone: bool = False) -> Iterator[None]:
    """Lock the target's device for calls that are not timed, and free torch's cached memory afterwards.
    ``alone`` makes the lock exclusive: calls of other processes may hold memory that these calls need.

    Raises UserError if another command holds the device for longer than ``wait_s``.
    """
    import torch

    with DeviceLock(target.device, target.wait_s, warn, shared=not alone):
        try:
            yield
        finally:
            with suppress(RuntimeError):  # a provider may have broken this process's CUDA context
                torch.cuda.empty_cache()
