"""Rows of generated code and their texts: made where they are missing or old, kept where nothing changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from kernels import Loaded
from kernels.contract import Gpu, Provider
from pipeline import ROOT, UserError
from pipeline.execution.identity import Identity
from pipeline.inspection import inductor, launched, launches, programs
from pipeline.inspection.disassembler import find_tools
from pipeline.inspection.library import CudaFunction, CudaLibrary, library_of
from pipeline.inspection.lines import Sources
from pipeline.inspection.listing import heading, of_ptx, of_sass
from pipeline.inspection.ptx import parse
from pipeline.inspection.usage import used
from pipeline.machine.device import Device
from pipeline.machine.lock import DeviceLock
from pipeline.points import closure, notation
from pipeline.points.frozen import digest
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow, joined
from pipeline.store.files import write_atomically
from pipeline.toolchain import extension
from pipeline.toolchain.extension import Place

LAUNCHED = ("triton", "gluon", "numba")
"""The languages whose functions are compiled as a call launches them: by Triton's compiler and by Numba."""

LONGEST_NAME = 150
"""Most characters of a text's name: file systems take 255 bytes, and a C++ template's name may be longer."""


def has_code(provider: Provider) -> bool:
    """Whether there is code of a provider to show: it is written here in Triton, Gluon, Numba or CUDA, or
    compiled by Inductor."""
    return provider.compiled or (provider.is_own and provider.language in (*LAUNCHED, "cuda"))


@cache
def reader() -> str:
    """The digest of the code that makes rows, and of the tools' version: a row that was made by another says
    other things of the same function. Raises UserError where there are no tools."""
    folder = ROOT / "pipeline"
    stop = ("pipeline.execution", "pipeline.machine", "pipeline.points", "pipeline.toolchain", "kernels")
    entries = [(folder / "inspection" / "code_rows.py", "CodeRows")]
    found = closure.closure(entries, {"pipeline": folder}, stop)
    return digest([closure.digest_of(found), find_tools().version])


@dataclass(frozen=True)
class Scope:
    """Whose code is asked for: a kernel's on a device, for architectures, of CUDA only the functions whose
    name holds ``function``; and where its texts lie, ``folder`` below ``artifacts``. ``shows`` that the texts
    themselves are asked for, and not only the rows."""

    loaded: Loaded
    identity: Identity
    device: Device
    architectures: tuple[str, ...]
    function: str | None
    artifacts: Path
    wait_s: float | None
    shows: bool

    @property
    def folder(self) -> Path:
        """Of this kernel's texts on this machine."""
        return self.artifacts / "codegen" / self.loaded.name / self.device.slug

    @property
    def native(self) -> str | None:
        """The architecture of this machine's GPU."""
        capability = self.identity.environment.compute_capability
        return capability and capability.replace(".", "")


class CodeRows:
    """The rows of some points. ``known`` are those of an earlier run, of which the ones stay that would come
    out the same and whose texts are there; of those ``in_git`` the texts may be missing, unless they are
    asked for. ``warn`` gets a sentence about what is left out. ``kept`` counts those that stayed."""

    def __init__(
        self,
        scope: Scope,
        known: Iterable[CodeRow],
        in_git: Container[CodeRow],
        warn: Callable[[str], None],
    ) -> None:
        self.scope = scope
        self.warn = warn
        self.kept = 0
        self.in_git: Container[CodeRow] = () if scope.shows else in_git
        self._known: dict[tuple[Point | None, str | None, str | None], list[CodeRow]] = {}
        for row in known:
            self._known.setdefault((row.point, row.source, row.architecture), []).append(row)
        self._names: dict[str, str] = {}
        self._functions: dict[tuple[str, str], list[CudaFunction]] = {}

    def rows(self, points: Sequence[Point], shown: Sequence[Point]) -> list[CodeRow]:
        """All rows of the points, in an order that does not depend on which were kept; ``shown`` are the
        points at which compiled providers are looked into."""
        launched = [point for point in points if self._provider(point).language in LAUNCHED]
        cuda = [point for point in points if self._provider(point).language == "cuda"]
        rows = self.as_launched(launched)
        rows += self.cuda(cuda, alone=not launched and not shown)
        return rows + [self.inductor(point) for point in shown]

    def as_launched(self, points: Sequence[Point]) -> list[CodeRow]:
        """A row for each program that a Triton, Gluon or Numba point launches, for each architecture."""
        asked = [
            (point, architecture)
            for architecture in self.scope.architectures
            for point in points
            if self._provider(point).runs_on(_gpu(architecture)) is None
        ]
        found = {one: self._kept(*one, self._compiler(one[0]), reader()) for one in asked}
        for rows in found.values():
            for row in rows or ():
                self._names[_stem(row.artifact)] = ""
        written: dict[str, str] = {}
        missing = [one for one in asked if found[one] is None]
        with closing(programs.compile_points(self.scope.loaded.where, missing)) as every:
            for one in every:
                found[one.point, one.architecture] = self._compiled(one, written)
        return [row for one in asked for row in found[one] or ()]

    def _compiler(self, point: Point) -> str:
        """What compiles a point's functions, with its version."""
        if self._provider(point).language == "numba":
            return f"numba-cuda {metadata.version('numba-cuda')}"
        return f"triton {self.scope.identity.environment.triton}"

    def _compiled(self, compiled: programs.Compiled, written: dict[str, str]) -> list[CodeRow]:
        """A row for each program of a point, or for why there are none. ``written``: the listings by what
        identifies a program, which those that are new join."""
        rows: list[CodeRow] = []
        point, architecture = compiled.point, compiled.architecture
        common = self._common(point, architecture, self._compiler(point))
        if compiled.error:
            rows.append(CodeRow(function="", error=compiled.error, **common))
        sources = Sources.of(self.scope.loaded)
        for number, program in enumerate(compiled.programs):
            row = CodeRow(
                function=program.analysis.symbol,
                launch_known=True,
                artifact=written.get(program.identity),
                **common,
                **used(program.analysis, architecture, program.threads, program.shared),
            )
            if row.artifact is None:
                name = f"{notation.file_name(point)}-sm_{architecture}" + f"-{number + 1}" * (number > 0)
                entry = parse(program.texts["ptx"], sources)[program.analysis.symbol]
                parts = {
                    "ptx": of_ptx(entry, sources),
                    "sass": of_sass(program.analysis.instructions, sources),
                }
                row = self._write(row, self._free(name, program.identity), program.texts, parts)
                written[program.identity] = str(row.artifact)
            rows.append(row)
        return rows

    def cuda(self, points: Sequence[Point], *, alone: bool) -> list[CodeRow]:
        """A row for each function of the points' CUDA sources, for each architecture; on a GPU also one for
        each that a point launches.

        Raises UserError for what is not there if there is no other code (``alone``); else it is said. Where
        no GPU would run them, they are compiled for their own sake alone: that takes minutes.
        """
        of_source: dict[str, list[Point]] = {}
        for point in points:
            of_source.setdefault(str(self._provider(point).extension), []).append(point)
        libraries: list[CudaLibrary] = []
        errors: dict[str, UserError] = {}
        for source in of_source:
            try:
                if not alone and self.scope.device.kind == "cpu":
                    self._expect(source)
                libraries.append(self._library(source))
            except UserError as error:
                errors[source] = error
        if alone and errors and not libraries:
            raise next(iter(errors.values()))
        for source, why in errors.items():
            self.warn(f"The functions of {source} were left out: {why}")
        rows = [
            row
            for library in libraries
            for architecture in self.scope.architectures
            if architecture in library.architectures
            for row in self._of_library(library, architecture)
        ]
        if self.scope.function and libraries and not rows:
            raise self._no_such_function(libraries)
        if self.scope.device.kind == "cuda":
            for library in libraries:
                rows += self._of_points(library, of_source[library.source])
        return rows

    def _no_such_function(self, libraries: Sequence[CudaLibrary]) -> UserError:
        names = [one.name for some in libraries for one in self._taken_apart(some, some.architectures[0])]
        return UserError(
            f"no CUDA function of {self.scope.loaded.name} is named like '{self.scope.function}': "
            f"{', '.join(dict.fromkeys(names))}."
        )

    def _expect(self, source: str) -> None:
        """Raises UserError unless the source was compiled here before."""
        loaded = self.scope.loaded
        if extension.manifest(Place.of(loaded), source) is None:
            names = [one.name for one in loaded.kernel.providers if one.extension == source]
            raise UserError(
                "no GPU here runs them, so that they are compiled when asked for alone: "
                f"python -m pipeline.codegen kernel={loaded.where} provider={names[0]}"
            )

    def _library(self, source: str) -> CudaLibrary:
        """The source's library; says which of the architectures it lacks. Raises UserError if it lacks all of
        them or can't be built."""
        library = library_of(self.scope.loaded, source)
        missing = [name for name in self.scope.architectures if name not in library.architectures]
        if missing:
            sentence = not_built(self.scope.loaded, source, missing, library.architectures)
            if len(missing) == len(self.scope.architectures):
                raise UserError(sentence)
            self.warn(sentence)
        return library

    def _of_library(self, library: CudaLibrary, architecture: str) -> list[CodeRow]:
        """A row for each function of a library, of which it is not known here which points launch it."""
        basis = self._basis(library)
        modules = [self.scope.folder / f"{library.stem}-sm_{architecture}.{kind}" for kind in ("sass", "ptx")]
        self._names[f"{library.stem}-sm_{architecture}"] = library.source
        known = self._known.get((None, library.source, architecture), [])
        stay = all(self._stays(row, None, library.compiler, basis) for row in known)
        there = all(path.exists() for path in modules) or all(row in self.in_git for row in known)
        if known and stay and there:
            self.kept += len(known)
            self._names |= {_stem(row.artifact): "" for row in known}
            return known
        functions = self._taken_apart(library, architecture)
        names = text_names(library, functions)
        rows = []
        for function in functions:
            if not self._wanted(function):
                continue
            sources = Sources.of(self.scope.loaded)
            parts = {"sass": of_sass(function.analysis.instructions, sources)}
            if function.ptx is not None:
                parts = {"ptx": of_ptx(function.ptx, sources), **parts}
            row = CodeRow(
                key=None,
                kernel=self.scope.loaded.name,
                point=None,
                language="cuda",
                source=library.source,
                function=function.name,
                architecture=architecture,
                native=architecture == self.scope.native,
                compiler=library.compiler,
                environment=self.scope.identity.environment.digest,
                basis=basis,
                **used(function.analysis, architecture, function.most_threads, 0),
            )
            self._names[names[function.name]] = function.name
            rows.append(self._write(row, names[function.name], {}, parts))
        return rows

    def _of_points(self, library: CudaLibrary, points: Sequence[Point]) -> list[CodeRow]:
        """A row for each function of the library that a point launches on this machine's GPU."""
        native = str(self.scope.native)
        if native not in library.architectures:
            return []
        basis = self._basis(library)
        found = {
            point: self._kept(point, native, library.compiler, basis, library.source) for point in points
        }
        missing = [(self.scope.identity.key(point), point) for point in points if found[point] is None]
        if missing:
            self._alone()
            where, seed = self.scope.loaded.where, self.scope.identity.seed
            with DeviceLock(self.scope.device, self.scope.wait_s, self.warn):
                told = launched.reported(where, missing, seed)
                seen = launches.observe(where, missing, seed)
            made = {
                key: launched.joined(told.get(key, ()), seen.get(key, ()), self._taken_apart(library, native))
                for key, _ in missing
            }
            found |= self.of_launches(library, [point for _, point in missing], made)
        return [row for point in points for row in found[point] or ()]

    def of_launches(
        self, library: CudaLibrary, points: Sequence[Point], made: Mapping[str, Sequence[launched.Launched]]
    ) -> dict[Point, list[CodeRow]]:
        """By point a row for each function of the library among the launches made, by the points' keys. Says
        which points launch none of these."""
        rows: dict[Point, list[CodeRow]] = {}
        without: dict[str, list[Point]] = {}
        names = text_names(library, self._taken_apart(library, str(self.scope.native)))
        for point in points:
            of_point = made.get(self.scope.identity.key(point), ())
            rows[point] = []
            for launch in of_point:
                function = launch.function
                if function is None or not self._wanted(function):
                    continue
                path = self.scope.folder / f"{names[function.name]}.txt"
                rows[point].append(
                    CodeRow(
                        function=function.name,
                        launch_known=True,
                        strategy=launch.strategy,
                        source=library.source,
                        artifact=self._below(path),
                        **self._common(point, function.architecture, library.compiler, self._basis(library)),
                        **used(function.analysis, function.architecture, launch.threads, launch.dynamic),
                    )
                )
            if of_point and not any(launch.function for launch in of_point):
                without.setdefault(of_point[-1].name, []).append(point)
        for name, some in without.items():
            self.warn(
                f"CUDA points without a row: {len(some)}, for example {notation.file_name(some[0])}. "
                f"They launch {name}, which is none of the library's functions."
            )
        return rows

    def inductor(self, point: Point) -> CodeRow:
        """The row for what torch.compile generated at a point; its source is kept."""
        native = self.scope.native
        compiler = f"torch {self.scope.identity.environment.torch}"
        kept = self._kept(point, native, compiler, reader())
        if kept is not None:
            self._names[_stem(kept[0].artifact)] = ""
            return kept[0]
        common = self._common(point, native, compiler) | {"language": "inductor"}
        self._alone()
        try:
            with DeviceLock(self.scope.device, self.scope.wait_s, self.warn):
                text = inductor.generated(
                    self.scope.loaded.where,
                    point,
                    torch.device(self.scope.device.kind),
                    self.scope.identity.seed,
                )
        except UserError:
            raise  # the device is taken
        except Exception as error:  # Inductor may raise anything; the other rows stay
            return CodeRow(function="", error=programs.one_line(error), **common)
        name = self._free(notation.file_name(point), "inductor")
        path = self.scope.folder / f"{name}.py"
        write_atomically(path, Sources.of(self.scope.loaded).portable(text).encode())
        names = ", ".join(inductor.kernel_names(text))
        return CodeRow(function=names, artifact=self._below(path), **common)

    def remove_others(self) -> None:
        """Remove the texts that belong to none of the rows that were asked for."""
        for path in self.scope.folder.glob("*"):
            if path.is_file() and path.name.rpartition(".")[0] not in self._names:
                path.unlink()

    def _kept(
        self,
        point: Point,
        architecture: str | None,
        compiler: str,
        basis: str,
        source: str | None = None,
    ) -> list[CodeRow] | None:
        """The known rows of a point, if all would come out the same; None if it has to be looked into."""
        rows = self._known.get((point, source, architecture), [])
        key = self.scope.identity.key(point)
        if not rows or not all(self._stays(row, key, compiler, basis) for row in rows):
            return None
        self.kept += len(rows)
        return rows

    def _stays(self, row: CodeRow, key: str | None, compiler: str, basis: str) -> bool:
        there = row.artifact is None or (self.scope.artifacts / row.artifact).is_file()
        return (there or row in self.in_git) and (row.key, row.compiler, row.basis) == (key, compiler, basis)

    def _basis(self, library: CudaLibrary) -> str:
        return digest([reader(), library.digest, self.scope.function])

    def _taken_apart(self, library: CudaLibrary, architecture: str) -> list[CudaFunction]:
        """The library's functions for an architecture; its modules' texts are written."""
        place = library.source, architecture
        if place not in self._functions:
            self._functions[place], texts = library.functions(architecture)
            for name, text in texts.items():
                write_atomically(self.scope.folder / name, text.encode())
        return self._functions[place]

    def _wanted(self, function: CudaFunction) -> bool:
        return (self.scope.function or "").replace(" ", "") in function.name.replace(" ", "")

    def _provider(self, point: Point) -> Provider:
        return self.scope.loaded.kernel.provider(point.provider)

    def _alone(self) -> None:
        """Let this process see no GPU but the one that was chosen."""
        if self.scope.device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.scope.device.uuid

    def _common(
        self, point: Point, architecture: str | None, compiler: str, basis: str | None = None
    ) -> dict[str, Any]:
        """The fields that rows of a point share."""
        return {
            **joined(point, self.scope.identity.key(point)),
            "language": self._provider(point).language,
            "architecture": architecture,
            "native": architecture is not None and architecture == self.scope.native,
            "compiler": compiler,
            "environment": self.scope.identity.environment.digest,
            "basis": basis or reader(),
        }

    def _free(self, name: str, identity: str) -> str:
        """The name for a text, told apart from that of other code that has it."""
        short = _short(name)
        if self._names.setdefault(short, identity) != identity:
            short = f"{short}-{identity[:8]}"
            self._names[short] = identity
        return short

    def _write(self, row: CodeRow, name: str, texts: dict[str, str], parts: dict[str, list[str]]) -> CodeRow:
        """Write a function's texts and its listing; the row with the listing's place."""
        sources = Sources.of(self.scope.loaded)
        for kind, text in texts.items():
            write_atomically(self.scope.folder / f"{name}.{kind}", sources.portable(text).encode())
        lines = heading(row)
        for kind, part in parts.items():
            lines += ["", f"== {kind.upper()}", *part]
        path = self.scope.folder / f"{name}.txt"
        write_atomically(path, ("\n".join(lines) + "\n").encode())
        return row.model_copy(update={"artifact": self._below(path)})

    def _below(self, path: Path) -> str:
        """A text's place among the artifacts."""
        return str(path.relative_to(self.scope.artifacts))


def text_names(library: CudaLibrary, functions: Sequence[CudaFunction]) -> dict[str, str]:
    """The names of the functions' texts: the words of their C++ names, and a digest of the whole name where
    several have the same words."""
    plain = {
        one.name: "-".join([library.stem, *_words(one.name), f"sm_{one.architecture}"]) for one in functions
    }
    several = {name for name in plain.values() if list(plain.values()).count(name) > 1}
    return {
        function: _short(f"{name}-{digest(function)[:8]}" if name in several else name)
        for function, name in plain.items()
    }


def not_built(loaded: Loaded, source: str, missing: Sequence[str], built: Sequence[str]) -> str:
    """What to do for architectures that a CUDA library has no code for."""
    every = ",".join(dict.fromkeys([*built, *missing]))
    return (
        f"the library of {loaded.name}/{source} has no code for "
        f"{', '.join(f'sm_{name}' for name in missing)}: "
        f"`python -m pipeline.build kernel={loaded.where} architectures=[{every}]` adds it."
    )


def _gpu(architecture: str) -> Gpu:
    """What there is to say of a GPU of an architecture and no model: its compute capability."""
    return Gpu((int(architecture[:-1]), int(architecture[-1])), 0, 0, 0)


def _stem(artifact: str | None) -> str:
    return Path(artifact or "").name.rpartition(".")[0]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 17]}-{digest(name)}"


def _words(name: str) -> list[str]:
    """The words of a C++ name."""
    return "".join(c if c.isalnum() or c == "_" else " " for c in name).split()
