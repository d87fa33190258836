"""Make rows for the functions in a kernel's CUDA libraries, and for the functions that a point launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.loading import Loaded
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.measurement import Launch
from kernel_pipeline.records.point import Point
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import Place
from kernel_pipeline.toolchain.resources import made_today

from .. import as_typed
from ..points import notation
from ..store.evidence import CodeRow
from . import code_target, launches
from .code_target import Basis, CodeTarget, Texts, reader, text_names, used
from .library import CudaFunction, CudaLibrary, library_of
from .listing import of_lines, of_ptx, of_sass
from .sources import Sources


class CudaCode:
    """The rows of CUDA points. ``warn`` prints a sentence about each library that is left out."""

    def __init__(self, target: CodeTarget, texts: Texts, warn: Callable[[str], None]) -> None:
        self.target = target
        self.texts = texts
        self.warn = warn
        self._key = target.identity.key
        self._libraries: dict[str, CudaLibrary | UserError] = {}

    def bases(self, points: Sequence[Point], *, alone: bool) -> set[Basis]:
        """Return the bases of the points' rows. Raises UserError if a library is missing."""
        found: set[Basis] = set()
        for source, some in self._by_source(points).items():
            library = self._library(source, alone)
            rests = library.compiler, self._basis(library)
            found |= {(None, source, name, *rests) for name in self._architectures(library)}
            if self._is_launched(library):
                found |= {(self._key(point), source, self.target.native, *rests) for point in some}
        return found

    def rows(self, points: Sequence[Point], *, alone: bool) -> list[CodeRow]:
        """Return a row for each function of the points' CUDA sources on each architecture. On a GPU, add a
        row for each function that a point launches.

        ``alone`` means that no other code is to be shown: UserError is raised if no library can be shown. A
        missing library is a warning otherwise. A host without a GPU compiles a source, which takes minutes,
        only if ``alone``.
        """
        of_source = self._by_source(points)
        functions: dict[str, dict[str, list[CudaFunction]]] = {}
        errors: dict[str, UserError] = {}
        libraries: dict[str, CudaLibrary] = {}
        for source in of_source:
            try:
                libraries[source] = library = self._library(source, alone)
                functions[source] = {
                    name: self._disassembled(library, name) for name in self._architectures(library)
                }
            except UserError as error:
                errors[source] = error
        if alone and errors and not functions:
            raise next(iter(errors.values()))
        for source, why in errors.items():
            self.warn(f"The functions of {source} were left out: {why}")
        rows = [
            row
            for source, by_architecture in functions.items()
            for architecture, some in by_architecture.items()
            for row in self._of_functions(libraries[source], architecture, some)
        ]
        if self.target.function and functions and not rows:
            names = dict.fromkeys(
                one.name for some in functions.values() for one in next(iter(some.values()))
            )
            raise UserError(
                f"no CUDA function of {self.target.loaded.name} has '{self.target.function}' in its name: "
                f"there are {', '.join(names)}."
            )
        for source, by_architecture in functions.items():
            library = libraries[source]
            if self._is_launched(library):
                native = by_architecture[str(self.target.native)]
                called = self._called([(self._key(point), point) for point in of_source[source]], native)
                rows += self.of_launches(library, native, of_source[source], called)
        return rows

    def _by_source(self, points: Sequence[Point]) -> dict[str, list[Point]]:
        found: dict[str, list[Point]] = {}
        for point in points:
            found.setdefault(str(self.target.provider(point).extension), []).append(point)
        return found

    def _architectures(self, library: CudaLibrary) -> list[str]:
        """Return the wanted architectures for which a library has code."""
        return [name for name in self.target.architectures if name in library.architectures]

    def _is_launched(self, library: CudaLibrary) -> bool:
        """Return whether this machine's GPU can launch the library's functions."""
        return self.target.device.kind == "cuda" and self.target.native in self._architectures(library)

    def _library(self, source: str, alone: bool) -> CudaLibrary:
        """Return the source's library. Warns once about architectures that it lacks. Raises UserError if it
        lacks all of them or can't be built."""
        if source not in self._libraries:
            try:
                self._libraries[source] = self._found(source, alone)
            except UserError as error:
                self._libraries[source] = error
        found = self._libraries[source]
        if isinstance(found, UserError):
            raise found
        return found

    def _found(self, source: str, alone: bool) -> CudaLibrary:
        if not alone and self.target.device.kind == "cpu":
            self._expect(source)
        library = library_of(self.target.loaded, source, self.target.built)
        missing = [name for name in self.target.architectures if name not in library.architectures]
        if missing:
            sentence = not_built(self.target.loaded, source, missing, library.architectures)
            if len(missing) == len(self.target.architectures):
                raise UserError(sentence)
            self.warn(sentence)
        return library

    def _expect(self, source: str) -> None:
        """Raise UserError unless the source was built here before or the report has its current version."""
        loaded, report = self.target.loaded, self.target.built
        place = Place.for_kernel(loaded)
        if extension.manifest(place, source) is None and not (report and made_today(place, source, report)):
            names = [one.name for one in loaded.kernel.providers if one.extension == source]
            raise UserError(
                "this machine has no GPU that runs them; to compile them, run "
                f"{as_typed('codegen', f'kernel={loaded.where}', f'provider={names[0]}')}"
            )

    def _disassembled(self, library: CudaLibrary, architecture: str) -> list[CudaFunction]:
        """Return the library's functions for an architecture, and write the module's texts."""
        functions, texts = library.functions(architecture)
        for name, text in texts.items():
            write_atomically(self.target.folder / name, text.encode())
        return functions

    def _of_functions(
        self, library: CudaLibrary, architecture: str, functions: Sequence[CudaFunction]
    ) -> list[CodeRow]:
        """Return a row for each wanted function of a library, independent of the points that launch it."""
        sources = Sources.for_kernel(self.target.loaded)
        self.texts.keep_named(f"{library.stem}-sm_{architecture}", library.source)
        names = text_names(library, (one.name for one in functions), architecture)
        rows = []
        for function in filter(self._is_wanted, functions):
            instructions = function.analysis.instructions
            parts = {kind: of(instructions, sources) for kind, of in (("sass", of_sass), ("lines", of_lines))}
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
                basis=self._basis(library),
                **used(function.analysis.resources, function.mix, architecture, function.most_threads, 0),
            )
            self.texts.keep_named(names[function.name], function.name)
            rows.append(self.texts.write(row, names[function.name], {}, parts))
        return rows

    def _called(
        self, points: Sequence[tuple[str, Point]], functions: Sequence[CudaFunction]
    ) -> dict[str, list[launches.Launched]]:
        """Return the launches of one call of each point, by key. Joins the launches that the provider reports
        with the launches in the profile.

        Other processes may hold memory that a point needs, so a point that fails is tried again with the
        device locked exclusively."""
        self.target.see_alone()
        where, seed = self.target.loaded.where, self.target.identity.seed
        reported: dict[str, tuple[Launch, ...]] = {}
        seen: dict[str, list[launches.DeviceLaunch]] = {}
        for alone in (False, True):
            if left := [(key, point) for key, point in points if key not in seen]:
                with code_target.calls(self.target, self.warn, alone=alone):
                    reported |= launches.reported(where, left, seed)
                    seen |= launches.observe(where, left, seed)
        return {
            key: launches.joined(reported.get(key, ()), seen.get(key, ()), functions) for key, _ in points
        }

    def of_launches(
        self,
        library: CudaLibrary,
        functions: Sequence[CudaFunction],
        points: Sequence[Point],
        called: Mapping[str, Sequence[launches.Launched]],
    ) -> list[CodeRow]:
        """Return a row for each launch of one of the library's functions. ``called`` maps a point's key to
        its launches. Warns about points that launch none of the functions."""
        rows: list[CodeRow] = []
        without: dict[str, list[Point]] = {}
        names = text_names(library, (one.name for one in functions), str(self.target.native))
        for point in points:
            of_point = called.get(self._key(point), ())
            for launch in of_point:
                function = launch.function
                if function is None or not self._is_wanted(function):
                    continue
                numbers = function.analysis.resources, function.mix, function.architecture
                rows.append(
                    CodeRow(
                        function=function.name,
                        launch_known=True,
                        strategy=launch.strategy,
                        source=library.source,
                        artifact=self.texts.below(self.texts.path(names[function.name])),
                        **self.target.common(
                            point, function.architecture, library.compiler, self._basis(library)
                        ),
                        **used(*numbers, launch.threads, launch.dynamic),
                    )
                )
            if of_point and not any(launch.function for launch in of_point):
                without.setdefault(of_point[-1].name, []).append(point)
        for name, some in without.items():
            self.warn(
                f"CUDA points without a row: {len(some)}, for example {notation.file_name(some[0])}. "
                f"They launch {name}, which is not a function of the library."
            )
        return rows

    def _basis(self, library: CudaLibrary) -> str:
        return digest([reader(), library.digest, self.target.function])

    def _is_wanted(self, function: CudaFunction) -> bool:
        return (self.target.function or "").replace(" ", "") in function.name.replace(" ", "")


def not_built(loaded: Loaded, source: str, missing: Sequence[str], built: Sequence[str]) -> str:
    """Return a sentence that says how to build a CUDA library for the architectures that it lacks."""
    every = ",".join(dict.fromkeys([*built, *missing]))
    adds = as_typed("build", f"kernel={loaded.where}", f"architectures=[{every}]")
    return (
        f"the library of {loaded.name}/{source} has no code for "
        f"{', '.join(f'sm_{name}' for name in missing)}: `{adds}` adds it."
    )
