"""Stage ``codegen``: what the machine runs.

    python -m pipeline.codegen kernel=softmax provider=triton_online block_size=1024 num_warps=8
    python -m pipeline.codegen kernel=softmax a=triton_online/1024x8w b=triton_online/1024x4w

Compiles every Triton variant of the kernel's grid and takes its CUDA library apart, for each architecture and
on any host; keeps what Inductor generated. One provider alone prints its annotated listing as well.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kernels.point import Point

import kernels
from kernels.contract import Kernel
from pipeline import UserError
from pipeline.command.config import CodegenConfig, console, run_stage, validated
from pipeline.inspection import disassembler, inductor, launches, library, programs
from pipeline.inspection.code_table import comparison, table
from pipeline.inspection.listing import heading, of_ptx, of_sass, portable
from pipeline.inspection.ptx import parse
from pipeline.inspection.usage import used
from pipeline.machine import device
from pipeline.machine.lock import DeviceLock
from pipeline.points import grid
from pipeline.points.notation import Variant, variant
from pipeline.reporting.table import print_wide
from pipeline.store import results
from pipeline.store.evidence import CodeRow, joined, write_lines
from pipeline.store.ledger import write_atomically
from pipeline.toolchain.extension import CUDA_SOURCE

warn = partial(console.print, style="yellow", highlight=False, soft_wrap=True)


def run(config: CodegenConfig) -> None:
    """Write rows and texts, and show the table, a listing or a comparison."""
    disassembler.find_tools()
    stage = Codegen(config)
    if config.a or config.b:
        stage.compare()
        return
    points = stage.points(config.provider)
    shutil.rmtree(stage.folder, ignore_errors=True)  # in place of this machine's earlier texts
    rows = stage.rows(points)
    path = results.codegen_path(config.output, stage.kernel.name, stage.slug)
    write_lines(path, [row.row() for row in rows])
    if config.provider is not None and len(config.provider) == 1:
        stage.list(rows)
    else:
        print_wide(console, table(rows, f"{stage.kernel.name}: what its functions use"))
    console.print(f"{len(rows)} rows: {path}, texts: {stage.folder}", highlight=False, soft_wrap=True)


class Codegen:
    """One run over the code of one kernel."""

    def __init__(self, config: CodegenConfig) -> None:
        self.config = config
        self.device = device.resolve(config.device)
        self.slug = self.device.slug
        self.environment = device.fingerprint(self.device)
        self.kernel: Kernel = kernels.load(config.kernel.name)
        capability = self.environment.compute_capability
        self.native = capability and capability.replace(".", "")
        self.architectures = config.architectures or (self.native or WITHOUT_GPU,)
        self.folder = config.artifacts / "codegen" / self.kernel.name / self.slug
        self.sources = {p.name: grid.source_digest(self.kernel.name, p) for p in self.kernel.providers}

    def points(self, providers: Sequence[str] | None) -> list[Point]:
        """The points asked for. Raises UserError for a provider that has no code to show."""
        points = grid.expand(self.kernel, providers, self.config.grids())
        for name in providers or ():
            if not self.has_code(name):
                raise UserError(
                    f"{name} of {self.kernel.name} has no code to show here: it calls what torch or the "
                    "C++ compiler brings. "
                    f"`python -m pipeline.profile kernel={self.kernel.name} provider={name}` "
                    "shows what it launches."
                )
        return points

    def has_code(self, name: str) -> bool:
        """Whether a provider is Triton, CUDA, or compiled by Inductor."""
        provider = self.kernel.provider(name)
        return provider.is_triton or provider.source == CUDA_SOURCE or name == COMPILED

    def rows(self, points: Sequence[Point]) -> list[CodeRow]:
        """All rows of the points; their texts are written to the artifacts."""
        with console.status(f"Compiling {self.kernel.name} …"):
            rows = self.triton(points)
            rows += self.cuda(points)
            rows += self.inductor(points)
        return rows

    def key(self, point: Point) -> str:
        """The key of the point's measurement in this machine's ledger."""
        return grid.key(
            point,
            self.sources[point.provider],
            self.environment.digest,
            self.config.timing,
            self.config.seed,
        )

    def triton(self, points: Iterable[Point]) -> list[CodeRow]:
        """A row for each program that a Triton point launches, for each architecture."""
        ours = [point for point in points if self.kernel.provider(point.provider).is_triton]
        rows: list[CodeRow] = []
        written: dict[str, str] = {}
        with closing(programs.compile_points(ours, self.architectures)) as every:
            for compiled in every:
                rows += self.compiled(compiled, written)
        return sorted(rows, key=lambda row: self.architectures.index(str(row.architecture)))

    def compiled(self, compiled: programs.Compiled, written: dict[str, str]) -> list[CodeRow]:
        """A row for each program of a point, or for why there are none. ``written``: the listings by what
        identifies a program, which those that are new join."""
        rows: list[CodeRow] = []
        point, architecture = compiled.point, compiled.architecture
        common = self.common(point, architecture, f"triton {self.environment.triton}")
        if compiled.error:
            rows.append(CodeRow(language="triton", function="", error=compiled.error, **common))
        for number, program in enumerate(compiled.programs):
            name = f"{variant(point)}-{point.extent}-sm_{architecture}" + f"-{number + 1}" * (number > 0)
            row = CodeRow(
                language="triton",
                function=program.analysis.symbol,
                launch_known=True,
                artifact=written.get(program.identity),
                **common,
                **used(program.analysis, architecture, program.threads, program.shared),
            )
            if row.artifact is None:
                entry = parse(program.texts["ptx"])[program.analysis.symbol]
                parts = {"ptx": of_ptx(entry), "sass": of_sass(program.analysis.instructions)}
                row = self.keep(row, name, program.texts, parts)
                written[program.identity] = str(row.artifact)
            rows.append(row)
        return rows

    def cuda(self, points: Sequence[Point]) -> list[CodeRow]:
        """A row for each CUDA function and number of warps in the grid; on a GPU also one for each point,
        which says what it launches."""
        ours = [p for p in points if self.kernel.provider(p.provider).source == CUDA_SOURCE]
        if not ours:
            return []
        try:
            found = library.functions_of(self.kernel.name, self.architectures)
        except UserError as error:
            if len(ours) == len(points):
                raise
            warn(f"The CUDA functions were left out: {error}")
            return []
        if missing := [name for name in self.architectures if name not in found.architectures]:
            sentence = not_built(self.kernel.name, missing, found.architectures)
            if len(ours) == len(points) and len(missing) == len(self.architectures):
                raise UserError(sentence)
            warn(sentence)
        for name, text in found.texts.items():
            write_atomically(self.folder / name, portable(text).encode())
        wanted = (self.config.function or "").replace(" ", "")
        rows = []
        for function in found.functions:
            if wanted not in function.name.replace(" ", ""):
                continue
            name = "-".join(["cuda", *re_words(function.name), f"sm_{function.architecture}"])
            parts = {"sass": of_sass(function.analysis.instructions)}
            if function.ptx is not None:
                parts = {"ptx": of_ptx(function.ptx), **parts}
            for warps in sorted({point.num_warps or 4 for point in ours}):
                row = CodeRow(
                    language="cuda",
                    key=None,
                    kernel=self.kernel.name,
                    num_warps=warps,
                    function=function.name,
                    architecture=function.architecture,
                    native=function.architecture == self.native,
                    compiler=found.compiler,
                    environment=self.environment.digest,
                    **used(function.analysis, function.architecture, 32 * warps, 0),
                )
                rows.append(self.keep(row, name, {}, parts))
        if wanted and not rows:
            names = ", ".join(dict.fromkeys(one.name for one in found.functions))
            raise UserError(f"no CUDA function of {self.kernel.name} is named like '{wanted}': {names}.")
        return rows + self.launched(ours, found)

    def launched(self, points: Sequence[Point], found: library.CudaLibrary) -> list[CodeRow]:
        """A row for each function of ours that a CUDA point launches on this machine's GPU."""
        if self.device.kind != "cuda":
            return []
        self.alone()
        with DeviceLock(self.device, self.config.wait_s, warn):
            made = launches.observe([(self.key(point), point) for point in points], self.config.seed)
        return self.of_launches(points, made, found)

    def of_launches(
        self,
        points: Sequence[Point],
        made: Mapping[str, Sequence[launches.Launch]],
        found: library.CudaLibrary,
    ) -> list[CodeRow]:
        """A row for each function of the library among the launches made, by the points' keys. Says which
        points launch none of these."""
        ours = {one.name: one for one in found.functions if one.architecture == self.native}
        rows = []
        without: dict[str, list[Point]] = {}
        for point in points:
            launched = [
                (ours.get(library.known_name(one.name)), one) for one in made.get(self.key(point), ())
            ]
            for function, launch in launched:
                if function is None:
                    continue
                dynamic = max(0, launch.shared - function.analysis.resources.shared)
                rows.append(
                    CodeRow(
                        language="cuda",
                        function=function.name,
                        launch_known=True,
                        **self.common(point, function.architecture, found.compiler),
                        **used(function.analysis, function.architecture, launch.threads, dynamic),
                    )
                )
            if launched and not any(function for function, _ in launched):
                without.setdefault(launched[-1][1].name, []).append(point)
        for name, some in without.items():
            warn(
                f"CUDA points without a row: {len(some)}, for example {variant(some[0])}. "
                f"They launch {name}, which is none of the library's functions."
            )
        return rows

    def inductor(self, points: Sequence[Point]) -> list[CodeRow]:
        """A row for what torch.compile generated, at a middle size of the first rows and dtype; its source is
        kept."""
        rows = []
        self.alone()
        rows_of, dtype = points[0].rows, points[0].dtype
        sizes = sorted({point.size for point in points if point.rows == rows_of})
        shown = (rows_of, sizes[len(sizes) // 2], dtype)
        for point in points:
            if point.provider != COMPILED or (point.rows, point.size, point.dtype) != shown:
                continue
            common = self.common(point, self.native, f"torch {self.environment.torch}")
            try:
                with DeviceLock(self.device, self.config.wait_s, warn):
                    text = inductor.generated(point, torch.device(self.device.kind), self.config.seed)
            except Exception as error:  # Inductor may raise anything; the other rows stay
                words = " ".join(f"{type(error).__name__}: {error}".split())[:500]
                rows.append(CodeRow(language="inductor", function="", error=words, **common))
                continue
            path = self.folder / f"{variant(point)}-{point.extent}.py"
            write_atomically(path, portable(text).encode())
            names = ", ".join(inductor.kernel_names(text))
            rows.append(CodeRow(language="inductor", function=names, artifact=self.below(path), **common))
        return rows

    def alone(self) -> None:
        """Let this process see no GPU but the one that was chosen."""
        if self.device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.device.uuid

    def common(self, point: Point, architecture: str | None, compiler: str) -> dict[str, Any]:
        """The fields that rows of a point share."""
        return {
            **joined(point, self.key(point)),
            "architecture": architecture,
            "native": architecture is not None and architecture == self.native,
            "compiler": compiler,
            "environment": self.environment.digest,
        }

    def keep(self, row: CodeRow, name: str, texts: dict[str, str], parts: dict[str, list[str]]) -> CodeRow:
        """Write a function's texts and its listing; the row with the listing's place."""
        for kind, text in texts.items():
            write_atomically(self.folder / f"{name}.{kind}", portable(text).encode())
        lines = heading(row)
        for kind, part in parts.items():
            lines += ["", f"== {kind.upper()}", *part]
        path = self.folder / f"{name}.txt"
        if not path.exists():
            write_atomically(path, ("\n".join(lines) + "\n").encode())
        return row.model_copy(update={"artifact": self.below(path)})

    def below(self, path: Path) -> str:
        """A text's place among the artifacts."""
        return str(path.relative_to(self.config.artifacts))

    def list(self, rows: Sequence[CodeRow]) -> None:
        """Print one listing: for this machine's GPU or compute capability 9.0 if that is there."""
        shown = [row for row in rows if row.artifact]
        if not shown:
            raise UserError(next((row.error for row in rows if row.error), "there is no code to show."))
        wanted = [row for row in shown if row.native or row.architecture == WITHOUT_GPU]
        row = (wanted or shown)[0]
        text = (self.config.artifacts / str(row.artifact)).read_text()
        if row.language != "inductor":
            head, *parts = text.split("\n== ")
            chosen = [part for part in parts if part.startswith(self.config.show.upper())]
            text = "\n== ".join([head, *(chosen or parts)])
        console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
        others = len({one.artifact for one in shown}) - 1
        if others:
            console.print(
                f"\n{others} more are in {self.folder}; size=, rows=, dtype=, block_size=, num_warps=, "
                "architectures=, function= choose, show=sass shows machine code.",
                highlight=False,
                soft_wrap=True,
            )

    def compare(self) -> None:
        """Print what differs between two variants, in numbers."""
        if not (self.config.a and self.config.b):
            raise UserError("a comparison needs both: a=triton_online/1024x8w b=triton_online/1024x4w.")
        both = [self.variant(text) for text in (self.config.a, self.config.b)]
        # Once for both: their listings stay.
        shutil.rmtree(self.folder, ignore_errors=True)
        found = [(chosen.text, chosen.one(stage.rows(points))) for chosen, stage, points in both]
        print_wide(console, comparison(*found))

    def variant(self, text: str) -> tuple[Variant, Codegen, Sequence[Point]]:
        """A variant, and its own stage and points. Raises UserError for one that has no numbers."""
        chosen = Variant.read(text, self.kernel, self.config.grids()[0], self.native or WITHOUT_GPU)
        if chosen.provider == COMPILED:
            raise UserError(
                f"'{text}' can't be compared: what is kept of it is Inductor's source, which has no numbers; "
                f"`python -m pipeline.codegen kernel={self.kernel.name} provider={COMPILED}` prints it."
            )
        pins = {"architectures": (chosen.architecture,), "function": chosen.function, **chosen.pins()}
        try:
            stage = Codegen(validated(CodegenConfig, self.config.model_dump() | pins))
        except UserError as error:
            raise UserError(f"'{text}': {error}") from error
        return chosen, stage, stage.points(stage.config.provider)


WITHOUT_GPU = "90"
"""The architecture whose code a machine without a GPU shows if nothing else is asked: Hopper's."""

COMPILED = "torch_compile"
"""The provider that torch.compile makes, by its name in every kernel."""


def not_built(kernel: str, missing: Sequence[str], built: Sequence[str]) -> str:
    """What to do for architectures that a CUDA library has no code for."""
    every = ",".join(dict.fromkeys([*built, *missing]))
    return (
        f"the CUDA library of {kernel} has no code for {', '.join(f'sm_{name}' for name in missing)}: "
        f"`python -m pipeline.build kernel={kernel} architectures=[{every}]` adds it."
    )


def re_words(name: str) -> list[str]:
    """The words of a C++ name, for a file's name."""
    return "".join(c if c.isalnum() or c == "_" else " " for c in name).split()


if __name__ == "__main__":
    run_stage("codegen", CodegenConfig, run)
