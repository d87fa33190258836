"""Rows of the functions in a kernel's CUDA libraries, and of those that a point launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernel_pipeline.loading import Loaded
from pipeline import UserError, as_typed
from pipeline.inspection import code_target, launches
from pipeline.inspection.code_target import KnownCode, Texts, text_names, used
from pipeline.inspection.disassembler import Resources
from pipeline.inspection.library import CudaFunction, CudaLibrary, CudaNumbers, library_of
from pipeline.inspection.listing import of_ptx, of_sass
from pipeline.inspection.sources import Sources
from pipeline.points import notation
from pipeline.points.frozen import digest
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow
from pipeline.store.files import write_atomically
from pipeline.store.record import Launch
from pipeline.toolchain import extension
from pipeline.toolchain.extension import Place
from pipeline.toolchain.resources import made_today


class CudaCode:
    """The rows of CUDA points. ``warn`` gets a sentence about what is left out."""

    def __init__(self, known: KnownCode, texts: Texts, warn: Callable[[str], None]) -> None:
        self.target = known.target
        self.known = known
        self.texts = texts
        self.warn = warn
        self._functions: dict[tuple[str, str], list[CudaFunction]] = {}
        self._rows: dict[tuple[str, str], list[CodeRow]] = {}

    def rows(self, points: Sequence[Point], *, alone: bool) -> list[CodeRow]:
        """A row for each function of the points' CUDA sources, for each architecture; on a GPU also one for
        each that a point launches.

        Raises UserError for what is not there if there is no other code (``alone``); else it is said. Where
        no GPU would run them, they are compiled for their own sake alone: that takes minutes.
        """
        of_source: dict[str, list[Point]] = {}
        for point in points:
            of_source.setdefault(str(self.target.provider(point).extension), []).append(point)
        libraries: list[CudaLibrary] = []
        rows: list[CodeRow] = []
        errors: dict[str, UserError] = {}
        for source in of_source:
            try:
                if not alone and self.target.device.kind == "cpu":
                    self._expect(source)
                library = self._library(source)
                rows += self._of_functions(library)
                libraries.append(library)
            except UserError as error:
                errors[source] = error
        if alone and errors and not libraries:
            raise next(iter(errors.values()))
        for source, why in errors.items():
            self.warn(f"The functions of {source} were left out: {why}")
        if self.target.function and libraries and not rows:
            raise self._no_such_function(libraries)
        if self.target.device.kind == "cuda":
            for library in libraries:
                rows += self._of_points(library, of_source[library.source])
        return rows

    def _no_such_function(self, libraries: Sequence[CudaLibrary]) -> UserError:
        names = [one.name for some in libraries for one in self._taken_apart(some, some.architectures[0])]
        return UserError(
            f"no CUDA function of {self.target.loaded.name} is named like '{self.target.function}': "
            f"{', '.join(dict.fromkeys(names))}."
        )

    def _expect(self, source: str) -> None:
        """Raises UserError unless the source was compiled before: here, or by the report where it is of
        today."""
        loaded, report = self.target.loaded, self.target.built
        place = Place.for_kernel(loaded)
        if extension.manifest(place, source) is None and not (report and made_today(place, source, report)):
            names = [one.name for one in loaded.kernel.providers if one.extension == source]
            raise UserError(
                "no GPU here runs them, so that they are compiled when asked for alone: "
                f"{as_typed('codegen', f'kernel={loaded.where}', f'provider={names[0]}')}"
            )

    def _library(self, source: str) -> CudaLibrary:
        """The source's library; says which of the architectures it lacks. Raises UserError if it lacks all of
        them, or has to be built and can't be."""
        library = library_of(self.target.loaded, source, self.target.built)
        missing = [name for name in self.target.architectures if name not in library.architectures]
        if missing:
            sentence = not_built(self.target.loaded, source, missing, library.architectures)
            if len(missing) == len(self.target.architectures):
                raise UserError(sentence)
            self.warn(sentence)
        return library

    def _of_functions(self, library: CudaLibrary) -> list[CodeRow]:
        """A row for each function of a library, for each architecture that was asked for and that it has."""
        return [
            row
            for architecture in self.target.architectures
            if architecture in library.architectures
            for row in self._of_library(library, architecture)
        ]

    def _of_library(self, library: CudaLibrary, architecture: str) -> list[CodeRow]:
        """A row for each function of a library for an architecture; it is not known here which points launch
        them."""
        place = library.source, architecture
        if place not in self._rows:
            self._rows[place] = self._looked_into(library, architecture)
        return self._rows[place]

    def _looked_into(self, library: CudaLibrary, architecture: str) -> list[CodeRow]:
        """The same: those of an earlier run where all stay, or new ones."""
        basis = self._basis(library)
        modules = [
            self.target.folder / f"{library.stem}-sm_{architecture}.{kind}" for kind in ("sass", "ptx")
        ]
        self.texts.keep_named(f"{library.stem}-sm_{architecture}", library.source)
        known = self.known.of_library(library.source, architecture, library.compiler, basis, modules)
        if known is not None:
            self.texts.keep(known)
            return known
        functions = self._taken_apart(library, architecture)
        names = text_names(library, (one.name for one in functions), architecture)
        rows = []
        for function in functions:
            if not self._wanted(function):
                continue
            sources, numbers = Sources.of(self.target.loaded), function.numbers
            parts = {"sass": of_sass(function.analysis.instructions, sources)}
            if function.ptx is not None:
                parts = {"ptx": of_ptx(function.ptx, sources), **parts}
            row = CodeRow(
                key=None,
                kernel=self.target.loaded.name,
                point=None,
                language="cuda",
                source=library.source,
                function=function.name,
                architecture=architecture,
                native=architecture == self.target.native,
                compiler=library.compiler,
                environment=self.target.identity.environment.digest,
                basis=basis,
                **used(numbers.resources, numbers.mix, architecture, function.most_threads, 0),
            )
            self.texts.keep_named(names[function.name], function.name)
            rows.append(self.texts.write(row, names[function.name], {}, parts))
        return rows

    def _of_points(self, library: CudaLibrary, points: Sequence[Point]) -> list[CodeRow]:
        """A row for each function of the library that a point launches on this machine's GPU."""
        native = str(self.target.native)
        if native not in library.architectures:
            return []
        basis = self._basis(library)
        found = {
            point: self.known.of_point(point, native, library.compiler, basis, library.source)
            for point in points
        }
        missing = [(self.target.identity.key(point), point) for point in points if found[point] is None]
        if missing:
            functions = self._numbers(library, native)
            told, seen = self._called(missing)
            made = {
                key: launches.joined(told.get(key, ()), seen.get(key, ()), functions) for key, _ in missing
            }
            every = [one.name for one in functions]
            found |= self.of_launches(library, every, [point for _, point in missing], made)
        return [row for point in points for row in found[point] or ()]

    def _called(
        self, points: Sequence[tuple[str, Point]]
    ) -> tuple[dict[str, tuple[Launch, ...]], dict[str, list[launches.DeviceLaunch]]]:
        """What calls of the points launch, by their keys: as their providers report it, and as the profiler
        sees it. A point that fails beside other processes, for which there may be no memory left then, is
        tried again alone."""
        self.target.see_alone()
        where, seed = self.target.loaded.where, self.target.identity.seed
        told: dict[str, tuple[Launch, ...]] = {}
        seen: dict[str, list[launches.DeviceLaunch]] = {}
        for alone in (False, True):
            if left := [(key, point) for key, point in points if key not in seen]:
                with code_target.calls(self.target, self.warn, alone=alone):
                    told |= launches.reported(where, left, seed)
                    seen |= launches.observe(where, left, seed)
        return told, seen

    def _numbers(self, library: CudaLibrary, architecture: str) -> list[CudaNumbers]:
        """The numbers of all of the library's functions: by their rows, so that a library whose rows stay is
        not taken apart again, unless these are of some functions alone."""
        if self.target.function:
            return [one.numbers for one in self._taken_apart(library, architecture)]
        return [_numbers_of(row, architecture) for row in self._of_library(library, architecture)]

    def of_launches(
        self,
        library: CudaLibrary,
        functions: Sequence[str],
        points: Sequence[Point],
        made: Mapping[str, Sequence[launches.Launched]],
    ) -> dict[Point, list[CodeRow]]:
        """By point a row for each of the library's functions among the launches made, by the points' keys.
        Says which points launch none of these."""
        rows: dict[Point, list[CodeRow]] = {}
        without: dict[str, list[Point]] = {}
        names = text_names(library, functions, str(self.target.native))
        for point in points:
            of_point = made.get(self.target.identity.key(point), ())
            rows[point] = []
            for launch in of_point:
                function = launch.function
                if function is None or not self._wanted(function):
                    continue
                path = self.texts.path(names[function.name])
                rows[point].append(
                    CodeRow(
                        function=function.name,
                        launch_known=True,
                        strategy=launch.strategy,
                        source=library.source,
                        artifact=self.texts.below(path),
                        **self.target.common(
                            point, function.architecture, library.compiler, self._basis(library)
                        ),
                        **used(
                            function.resources,
                            function.mix,
                            function.architecture,
                            launch.threads,
                            launch.dynamic,
                        ),
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

    def _basis(self, library: CudaLibrary) -> str:
        return digest([self.known.reader, library.digest, self.target.function])

    def _taken_apart(self, library: CudaLibrary, architecture: str) -> list[CudaFunction]:
        """The library's functions for an architecture; its modules' texts are written."""
        place = library.source, architecture
        if place not in self._functions:
            self._functions[place], texts = library.functions(architecture)
            for name, text in texts.items():
                write_atomically(self.target.folder / name, text.encode())
        return self._functions[place]

    def _wanted(self, function: CudaFunction | CudaNumbers) -> bool:
        return (self.target.function or "").replace(" ", "") in function.name.replace(" ", "")


def _numbers_of(row: CodeRow, architecture: str) -> CudaNumbers:
    """A function's numbers as the row of it has them, whose launch asks for no shared memory on top."""
    registers, shared, stack, mix = row.registers, row.shared, row.stack, row.mix
    assert registers is not None and shared is not None and stack is not None and mix is not None, "no error"
    return CudaNumbers(
        row.function, architecture, Resources(registers=registers, shared=shared, stack=stack), mix
    )


def not_built(loaded: Loaded, source: str, missing: Sequence[str], built: Sequence[str]) -> str:
    """What to do for architectures that a CUDA library has no code for."""
    every = ",".join(dict.fromkeys([*built, *missing]))
    adds = as_typed("build", f"kernel={loaded.where}", f"architectures=[{every}]")
    return (
        f"the library of {loaded.name}/{source} has no code for "
        f"{', '.join(f'sm_{name}' for name in missing)}: `{adds}` adds it."
    )
