"""Whose generated code is looked into; the rows and the texts that belong to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernel_pipeline.contract import Provider
from kernel_pipeline.loading import Loaded
from pipeline.execution.identity import Identity
from pipeline.inspection.disassembler import Resources, find_tools
from pipeline.inspection.library import CudaLibrary
from pipeline.inspection.listing import heading
from pipeline.inspection.occupancy import occupancy
from pipeline.inspection.sources import Sources
from pipeline.machine.device import Device
from pipeline.machine.lock import DeviceLock
from pipeline.points.frozen import digest
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow, Mix, joined
from pipeline.store.files import write_atomically
from pipeline.toolchain.resources import BuildReport

READER = 2
"""The version of the code that makes rows: raise it where rows of the same functions say other things."""

LAUNCHED = ("triton", "gluon", "numba")
"""The languages whose functions are compiled as a call launches them: by Triton's compiler and by Numba."""


def has_code(provider: Provider) -> bool:
    """Whether there is code of a provider to show: it is written here in Triton, Gluon, Numba or CUDA, or
    compiled by Inductor."""
    return provider.compiled or (provider.is_own and provider.language in (*LAUNCHED, "cuda"))


@dataclass(frozen=True)
class CodeTarget:
    """Whose code is asked for: a kernel's on a device, for architectures, of CUDA only the functions whose
    name holds ``function``; and where its texts lie, ``folder`` below ``artifacts``. ``shows`` that the texts
    themselves are asked for, and not only the rows. ``built`` is the report of an earlier build on this
    machine, by which a CUDA library is known that is not here."""

    loaded: Loaded
    identity: Identity
    device: Device
    architectures: tuple[str, ...]
    function: str | None
    artifacts: Path
    wait_s: float | None
    shows: bool
    built: BuildReport | None = None

    @property
    def folder(self) -> Path:
        """Of this kernel's texts on this machine."""
        return self.artifacts / "codegen" / self.loaded.name / self.device.slug

    @property
    def native(self) -> str | None:
        """The architecture of this machine's GPU."""
        capability = self.identity.environment.compute_capability
        return capability and capability.replace(".", "")

    def provider(self, point: Point) -> Provider:
        """The provider of a point."""
        return self.loaded.kernel.provider(point.provider)

    def see_alone(self) -> None:
        """Let this process see no GPU but the one that was chosen."""
        if self.device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.device.uuid

    def common(self, point: Point, architecture: str | None, compiler: str, basis: str) -> dict[str, Any]:
        """The fields that rows of a point share."""
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
    """The version of the code that makes rows with that of the tools: a row that was made by another says
    other things of the same function. Raises UserError where there are no tools."""
    return digest([READER, find_tools().version])


class KnownCode:
    """The rows of an earlier run. One stays if nothing of it changed and its text is there; of those
    ``in_git`` the texts may be missing, unless they are asked for. ``kept`` counts those that stayed."""

    def __init__(self, target: CodeTarget, rows: Iterable[CodeRow], in_git: Container[CodeRow]) -> None:
        self.target = target
        self.kept = 0
        self._in_git: Container[CodeRow] = () if target.shows else in_git
        self._rows: dict[tuple[Point | None, str | None, str | None], list[CodeRow]] = {}
        for row in rows:
            self._rows.setdefault((row.point, row.source, row.architecture), []).append(row)

    @property
    def reader(self) -> str:
        """The ``reader`` of this run."""
        return reader()

    def of_point(
        self, point: Point, architecture: str | None, compiler: str, basis: str, source: str | None = None
    ) -> list[CodeRow] | None:
        """The rows of a point, if all stay; None if it has to be looked into."""
        rows = self._rows.get((point, source, architecture), [])
        key = self.target.identity.key(point)
        if not rows or not all(self._stays(row, key, compiler, basis) for row in rows):
            return None
        self.kept += len(rows)
        return rows

    def of_library(
        self, source: str, architecture: str, compiler: str, basis: str, modules: Sequence[Path]
    ) -> list[CodeRow] | None:
        """The rows of a library's functions, if all stay and the texts of its modules are there; None if it
        has to be taken apart."""
        rows = self._rows.get((None, source, architecture), [])
        stay = all(self._stays(row, None, compiler, basis) for row in rows)
        there = all(path.exists() for path in modules) or all(row in self._in_git for row in rows)
        if not (rows and stay and there):
            return None
        self.kept += len(rows)
        return rows

    def _stays(self, row: CodeRow, key: str | None, compiler: str, basis: str) -> bool:
        there = row.artifact is None or (self.target.artifacts / row.artifact).is_file()
        return (there or row in self._in_git) and (row.key, row.compiler, row.basis) == (key, compiler, basis)


LONGEST_NAME = 150
"""Most characters of a text's name: file systems take 255 bytes, and a C++ template's name may be longer."""


class Texts:
    """The texts that belong to the rows which are asked for; what else lies in their folder is old."""

    def __init__(self, target: CodeTarget) -> None:
        self.target = target
        self._names: dict[str, str] = {}

    def keep(self, rows: Iterable[CodeRow]) -> None:
        """Keep the texts of rows that stayed."""
        for row in rows:
            self._names[_stem(row.artifact)] = ""

    def keep_named(self, name: str, identity: str) -> None:
        """Keep the text, of what ``identity`` tells from others, under a name that nothing else has."""
        self._names[name] = identity

    def free(self, name: str, identity: str) -> str:
        """The name for a text, told apart from that of other code that has it."""
        short = _short(name)
        if self._names.setdefault(short, identity) != identity:
            short = f"{short}-{identity[:8]}"
            self._names[short] = identity
        return short

    def write(
        self, row: CodeRow, name: str, texts: Mapping[str, str], parts: Mapping[str, Sequence[str]]
    ) -> CodeRow:
        """Write a function's texts and its listing; the row with the listing's place."""
        sources = Sources.of(self.target.loaded)
        for kind, text in texts.items():
            write_atomically(self.target.folder / f"{name}.{kind}", sources.portable(text).encode())
        lines = heading(row)
        for kind, part in parts.items():
            lines += ["", f"== {kind.upper()}", *part]
        path = self.path(name)
        write_atomically(path, ("\n".join(lines) + "\n").encode())
        return row.model_copy(update={"artifact": self.below(path)})

    def path(self, name: str) -> Path:
        """Of the listing with that name."""
        return self.target.folder / f"{name}.txt"

    def below(self, path: Path) -> str:
        """A text's place among the artifacts."""
        return str(path.relative_to(self.target.artifacts))

    def remove_others(self) -> None:
        """Remove the texts that belong to none of the rows that were asked for."""
        for path in self.target.folder.glob("*"):
            if path.is_file() and path.name.rpartition(".")[0] not in self._names:
                path.unlink()


def text_names(library: CudaLibrary, functions: Iterable[str], architecture: str) -> dict[str, str]:
    """The names of texts of the functions, which are named in C++: its words, and a digest of the whole name
    where several have the same words."""
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
    """The words of a C++ name."""
    return "".join(c if c.isalnum() or c == "_" else " " for c in name).split()


def used(resources: Resources, mix: Mix, architecture: str, threads: int, shared: int) -> dict[str, Any]:
    """The numbers of a CodeRow that follow from a function and its launch; ``shared`` is what the launch asks
    for on top."""
    total = resources.shared + shared
    limits = occupancy(architecture, resources.registers, total, threads)
    return {
        "registers": resources.registers,
        "shared": total,
        "stack": resources.stack,
        "threads": threads,
        "mix": mix,
        **(limits.model_dump() if limits else {}),
    }


@contextmanager
def calls(target: CodeTarget, warn: Callable[[str], None], *, alone: bool = False) -> Iterator[None]:
    """The target's device, for calls that are not timed; ``alone`` keeps off those of other processes, too,
    which may hold the memory that these need. The memory that torch keeps is given back after it.

    Raises UserError when the device is measured on for longer than the target waits.
    """
    import torch

    with DeviceLock(target.device, target.wait_s, warn, shared=not alone):
        try:
            yield
        finally:
            with suppress(RuntimeError):  # of a device that a provider has spoilt for this process
                torch.cuda.empty_cache()
