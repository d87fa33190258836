"""Compile points with Triton and Numba, on any host, and describe the programs as rows."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from importlib import metadata
from multiprocessing import active_children, forkserver, get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any

from kernel_pipeline import tracebacks
from kernel_pipeline.contract import Gpu
from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.compile_server import alike
from kernel_pipeline.execution.offline import compile_for, compile_point, only_compile
from kernel_pipeline.machine.device import cpu_threads
from kernel_pipeline.machine.reaper import INTERPRETERS, die_with
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.point import Point

from ..points import notation
from ..store.evidence import CodeRow
from . import numba_code
from .code_target import Basis, CodeTarget, Texts, reader, used
from .disassembler import Analysis, analyse_bytes
from .listing import of_lines, of_ptx, of_sass
from .ptx import parse
from .sass import mix
from .sources import Sources

FORKS = get_context("forkserver")
"""The fork server imports torch and Triton once for all compiler processes."""
FORKS.set_forkserver_preload(
    ["torch", "triton.compiler.code_generator", "kernel_pipeline.execution.instance", __name__]
)

LONGEST_FOLDER = 60
"""The longest path of a temporary folder, in characters, that can hold the fork server's socket. Linux limits
the socket's whole path to 107 characters."""


@dataclass(frozen=True)
class Program:
    """The compiled kernel of one launch. Equal code has an equal ``identity``.

    ``texts`` maps ``ptx``, ``sass`` and, for Triton, ``ttgir`` and ``llir`` to the text. ``threads`` is the
    block size; ``shared`` is the dynamic shared memory in bytes. ``chosen`` are the values that Triton's
    autotune and heuristics chose for this launch."""

    identity: str
    analysis: Analysis
    threads: int
    shared: int
    texts: dict[str, str]
    chosen: str | None = None


@dataclass(frozen=True)
class CompiledPoint:
    """The programs that a point launches on an architecture, or the reason why there are none."""

    point: Point
    architecture: str
    programs: tuple[Program, ...]
    error: str | None = None


def compile_points(where: str, wanted: Sequence[tuple[Point, str]]) -> Generator[CompiledPoint, None, None]:
    """Compile Triton and Numba points of the kernel ``where`` in parallel, each for its architecture. Closing
    the generator stops the compilers.

    Points whose problems differ only in numbers usually share a program, so one process compiles all of them
    and disassembles each program once. Raises UserError without cuobjdump or nvdisasm.
    """
    points: dict[str, list[Point]] = {}
    for point, architecture in wanted:
        points.setdefault(architecture, []).append(point)
    tasks = [(group, architecture) for architecture, some in points.items() for group in alike(some)]
    if not tasks:
        return
    # Triton and Numba would read these on import and interpret kernels instead of compiling them.
    interpreters = {name: os.environ.pop(name) for name in INTERPRETERS if name in os.environ}
    environment = dict(os.environ)
    short = len(tempfile.gettempdir()) <= LONGEST_FOLDER
    try:
        if short:
            forkserver.ensure_running()
    finally:
        os.environ.update(interpreters)
    jobs = min(cpu_threads(), 16, len(tasks))
    with ProcessPoolExecutor(
        jobs, FORKS if short else get_context("spawn"), _prepare, (environment,)
    ) as pool:
        futures = [pool.submit(_compile, where, group, architecture) for group, architecture in tasks]
        try:
            for future in futures:
                yield from future.result()
        except BaseException:
            # Otherwise the pool would wait for all tasks.
            for process in active_children():
                process.kill()
            raise


@dataclass
class CompiledLaunch:
    """A compiled launch of Triton's, and the choices of autotune and heuristics that led to it, the last
    first."""

    binary: Any
    choices: list[str] = field(default_factory=list)


_launched: list[CompiledLaunch] = []
"""The compiled launches of the current point. A process of the pool compiles one point at a time."""


def _prepare(environment: Mapping[str, str]) -> None:
    """Make this pool process compile launches instead of running them, in the given environment."""
    # The parent is the fork server, which ends only after its last child. So each child also watches the
    # process that owns the pool.
    die_with(os.getppid())
    asks = parent_process()
    if asks is None or not asks.is_alive():
        sys.exit(1)
    Thread(target=_end_with, args=(asks.sentinel,), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    only_compile(lambda binary: _launched.append(CompiledLaunch(binary)))
    _note_choices()


def _note_choices() -> None:
    """From now on let autotuned functions and functions with heuristics note their choices at launches."""
    from triton.runtime.autotuner import Autotuner, Heuristics

    def noted(run: Callable[..., Any], chosen: Callable[[Any, Any], str]) -> Callable[..., Any]:
        def noting(self: Any, *args: Any, **named: Any) -> Any:
            before = len(_launched)
            made = run(self, *args, **named)
            for launch in _launched[before:]:
                launch.choices.append(chosen(self, launch.binary))
            return made

        return noting

    Autotuner.run = noted(Autotuner.run, _of_autotune)
    Heuristics.run = noted(Heuristics.run, _of_heuristics)


def _of_autotune(tuner: Any, binary: Any) -> str:
    found = tuner.best_config
    shown = {**found.kwargs, "num_warps": found.num_warps, "num_stages": found.num_stages}
    pruned = " after pruning" if tuner.early_config_prune or tuner.perf_model else ""
    return f"autotune, first of {len(tuner.configs)}{pruned}: {_listed(shown)}"


def _of_heuristics(heuristics: Any, binary: Any) -> str:
    function = binary.src.fn
    constants = {function.arg_names[place[0]]: value for place, value in binary.src.constants.items()}
    shown = {name: constants.get(name, getattr(binary.metadata, name, "")) for name in heuristics.values}
    return f"heuristics: {_listed(shown)}"


def _listed(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _end_with(sentinel: int) -> None:
    """End this process when the process with this sentinel ends."""
    wait([sentinel])
    os._exit(1)


def _compile(where: str, points: Sequence[Point], architecture: str) -> list[CompiledPoint]:
    from kernel_pipeline import loading

    loaded = loading.load(where)
    sources = Sources.for_kernel(loaded)
    known: dict[str, Program] = {}
    found = []
    for point in points:
        language = loaded.kernel.provider(point.provider).language
        compiled = _by_numba if language == "numba" else _by_triton
        try:
            programs = compiled(where, point, architecture, sources, known)
        except Exception as error:  # a compiler may raise anything; only this point fails
            found.append(CompiledPoint(point, architecture, (), _reason(error, loaded.folder)))
            continue
        reason = None if programs else f"its call launches no kernel of {language.capitalize()}'s"
        found.append(CompiledPoint(point, architecture, tuple(programs), reason))
    return found


def _by_triton(
    where: str, point: Point, architecture: str, sources: Sources, known: dict[str, Program]
) -> list[Program]:
    compile_for(int(architecture))
    _launched.clear()
    compile_point(where, point)
    programs = []
    for launch in _launched:
        identity = str(launch.binary.metadata.hash)
        if identity not in known:
            known[identity] = _disassembled(launch.binary, architecture, sources)
        chosen = "; ".join(reversed(launch.choices)) or None
        programs.append(dataclasses.replace(known[identity], chosen=chosen))
    return programs


def _by_numba(
    where: str, point: Point, architecture: str, sources: Sources, known: dict[str, Program]
) -> list[Program]:
    programs = []
    for launch in numba_code.compile_point(where, point, architecture):
        identity = digest([launch.ptx, architecture, launch.threads, launch.shared])
        if identity not in known:
            cubin = numba_code.assembled(launch.ptx, architecture)
            functions, sass = analyse_bytes(cubin, architecture, sources)
            known[identity] = Program(
                identity=identity,
                analysis=_only(functions, launch.name),
                threads=launch.threads,
                shared=launch.shared,
                texts={"ptx": launch.ptx, "sass": sass},
            )
        programs.append(known[identity])
    return programs


def _only(functions: Sequence[Analysis], symbol: str) -> Analysis:
    """Return the function with that symbol. Raises UserError if there is not exactly one."""
    ours = [function for function in functions if function.symbol == symbol]
    if len(ours) != 1:
        raise UserError(f"the cubin of {symbol} holds no function of that name.")
    return ours[0]


def _reason(error: Exception, folder: Path) -> str:
    """Return why a point has no code, with the line of the kernel's files that failed."""
    reason = " ".join(tracebacks.described(error, [folder]).split())
    if isinstance(error, AttributeError | TypeError):
        # A tensor without data, or a driver without a GPU, lacks an attribute that the call needs.
        reason = f"its call needs a GPU or data before it launches anything: {reason}"
    return reason[:500]


def one_line(error: Exception) -> str:
    """Return a compiler's error in one line of at most 500 characters."""
    return " ".join(tracebacks.named(error).split())[:500]


def _disassembled(binary: Any, architecture: str, sources: Sources) -> Program:
    functions, sass = analyse_bytes(binary.asm["cubin"], architecture, sources)
    texts = {kind: binary.asm[kind] for kind in ("ttgir", "llir", "ptx")} | {"sass": sass}
    return Program(
        identity=str(binary.metadata.hash),
        analysis=_only(functions, binary.metadata.name),
        threads=32 * binary.metadata.num_warps,
        shared=binary.metadata.shared,
        texts=texts,
    )


class LaunchedCode:
    """Rows for kernels that are compiled at launch: Triton, Gluon and Numba."""

    def __init__(self, target: CodeTarget, texts: Texts) -> None:
        self.target = target
        self.texts = texts

    def bases(self, points: Sequence[Point]) -> set[Basis]:
        """Return the bases of the points' rows."""
        key = self.target.identity.key
        return {
            (key(point), None, architecture, self._compiler(point), reader())
            for point, architecture in self._wanted(points)
        }

    def rows(self, points: Sequence[Point]) -> list[CodeRow]:
        """Return a row for each program that a point launches on each architecture."""
        written: dict[str, str] = {}
        wanted = self._wanted(points)
        found: dict[tuple[Point, str], list[CodeRow]] = {}
        with closing(compile_points(self.target.loaded.where, wanted)) as every:
            for one in every:
                found[one.point, one.architecture] = self._rows(one, written)
        return [row for one in wanted for row in found[one]]

    def _wanted(self, points: Sequence[Point]) -> list[tuple[Point, str]]:
        """Pair each point with the architectures that its provider supports."""
        return [
            (point, architecture)
            for architecture in self.target.architectures
            for point in points
            if self.target.provider(point).runs_on(_gpu(architecture)) is None
        ]

    def _compiler(self, point: Point) -> str:
        """Return the name and version of the compiler of a point's functions."""
        if self.target.provider(point).language == "numba":
            return f"numba-cuda {metadata.version('numba-cuda')}"
        return f"triton {self.target.identity.environment.triton}"

    def _rows(self, compiled: CompiledPoint, written: dict[str, str]) -> list[CodeRow]:
        """Return a row for each program of a point, or one row with the reason why there is none.

        ``written`` maps the identity of each listed program to its listing. New listings are added to it."""
        rows: list[CodeRow] = []
        point, architecture = compiled.point, compiled.architecture
        common = self.target.common(point, architecture, self._compiler(point), reader())
        if compiled.error:
            rows.append(CodeRow(function="", error=compiled.error, **common))
        sources = Sources.for_kernel(self.target.loaded)
        for number, program in enumerate(compiled.programs):
            row = CodeRow(
                function=program.analysis.symbol,
                launch_known=True,
                strategy=program.chosen,
                artifact=written.get(program.identity),
                **common,
                **used(
                    program.analysis.resources,
                    mix(program.analysis.instructions),
                    architecture,
                    program.threads,
                    program.shared,
                ),
            )
            if row.artifact is None:
                name = f"{notation.file_name(point)}-sm_{architecture}" + f"-{number + 1}" * (number > 0)
                entry = parse(program.texts["ptx"], sources)[program.analysis.symbol]
                parts = {
                    "ptx": of_ptx(entry, sources),
                    "sass": of_sass(program.analysis.instructions, sources),
                    "lines": of_lines(program.analysis.instructions, sources),
                }
                row = self.texts.write(row, self.texts.free(name, program.identity), program.texts, parts)
                written[program.identity] = str(row.artifact)
            rows.append(row)
        return rows


def _gpu(architecture: str) -> Gpu:
    """Return a Gpu of which only the compute capability is known."""
    return Gpu((int(architecture[:-1]), int(architecture[-1])), 0, 0, 0)
