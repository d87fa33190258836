"""Stage ``codegen``: what the machine runs.

    python -m pipeline.codegen kernel=softmax provider=triton_online block_size=1024 num_warps=8
    python -m pipeline.codegen kernel=softmax a=triton_online/1024x8w b=triton_online/1024x4w
    python -m pipeline.codegen kernel=matmul provider=triton_tiled show=sass

Compiles every Triton and Numba variant of the kernel's plan and takes its CUDA libraries apart, for each
architecture and on any host; keeps what Inductor generated. What an earlier run left and nothing has changed
of is kept. One provider alone prints its annotated listing as well. With lazily=true a host without a GPU
compiles for none: of what a GPU would run, the rows that are there stay, and are kept up to date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from kernel_pipeline.contract import Value
from pipeline import UserError, as_typed
from pipeline.command.errors import validated
from pipeline.command.options import CodegenConfig
from pipeline.command.run import console, for_each, run_each, say, warn
from pipeline.execution.identity import Identity
from pipeline.inspection import disassembler, inductor_code
from pipeline.inspection.code_table import comparison, table
from pipeline.inspection.code_target import LAUNCHED, CodeTarget, KnownCode, Texts, has_code
from pipeline.inspection.cuda_code import CudaCode
from pipeline.inspection.library import is_for
from pipeline.inspection.programs import LaunchedCode
from pipeline.machine import device
from pipeline.machine.environment import fingerprint
from pipeline.points import choice
from pipeline.points.notation import Variant
from pipeline.points.plan import Plan, Target, chosen_providers, plan
from pipeline.points.point import Point, order
from pipeline.points.problems import SIZE
from pipeline.reporting.numbers import print_wide
from pipeline.store import results
from pipeline.store.evidence import CodeRow, committed, read_lines, write_lines
from pipeline.toolchain import resources
from pipeline.toolchain.extension import WITHOUT_GPU


def run(configs: Sequence[CodegenConfig]) -> None:
    """``of_kernel`` for each kernel."""
    chosen = device.resolve(configs[0].device)  # once: CUDA_VISIBLE_DEVICES is set on the way
    where = results.folder_for(configs[0].output, chosen.kind) / "codegen"
    for_each(configs, partial(of_kernel, chosen=chosen), where)


def of_kernel(config: CodegenConfig, chosen: device.Device) -> None:
    """Write rows and texts, and show the table, a listing or a comparison."""
    disassembler.find_tools()
    stage = Codegen(config, chosen)
    if config.a or config.b:
        stage.compare()
        return
    points, shown = stage.points()
    rows = stage.rows(points, shown) if points or shown else []
    write_lines(stage.path, rows)
    stage.texts.remove_others()
    if stage.target.shows:
        stage.listing(rows)
    elif points:
        print_wide(console, table(rows, f"{stage.loaded.name}: what its functions use"))
    for line in stage.left_out:
        say(line)
    kept = stage.earlier.kept
    count = f"{len(rows)} row{'s' * (len(rows) != 1)}, {kept} of them from before"
    say(f"{count}: {stage.path}, texts: {stage.target.folder}")


class Codegen:
    """One run over the code of one kernel."""

    def __init__(self, config: CodegenConfig, chosen: device.Device) -> None:
        self.config = config
        self.entry = config.entry
        self.loaded = self.entry.loaded
        self.device = chosen
        identity = Identity(self.loaded, fingerprint(self.device), config.timing, config.seed)
        capability = identity.environment.compute_capability
        self.native = capability and capability.replace(".", "")
        results.asked_for(results.codegen_path(config.output, self.loaded.name, self.device.slug))
        output = results.folder_for(config.output, self.device.kind)
        self.path = results.codegen_path(output, self.loaded.name, self.device.slug)
        self.target = CodeTarget(
            loaded=self.loaded,
            identity=identity,
            device=self.device,
            architectures=config.architectures or (self.native or WITHOUT_GPU,),
            function=config.function,
            artifacts=config.artifacts,
            wait_s=config.wait_s,
            shows=config.provider is not None and len(config.provider) == 1,
            built=resources.report_at(results.build_path(output, self.loaded.name, self.device.slug)),
        )
        self.target.folder.parent.mkdir(parents=True, exist_ok=True)
        known = self.known()
        self._compiled = {row.source or row.point for row in known}
        self.earlier = KnownCode(self.target, known, committed(self.path, known))
        self.texts = Texts(self.target)
        self.left_out: list[str] = []

    def known(self) -> list[CodeRow]:
        """The rows of an earlier run; those that can't be read are made anew."""
        unreadable: list[str] = []
        rows = read_lines(self.path, CodeRow, unreadable.append)
        if unreadable:
            warn(f"{self.path}: {len(unreadable)} lines are not readable and are made anew.")
        return rows

    def points(self) -> tuple[list[Point], list[Point]]:
        """The points asked for whose code is compiled for an architecture, and for each provider that is
        compiled by Inductor the one that it is shown at. Raises UserError for a provider that has no code to
        show, and where there is no point at all."""
        chosen = chosen_providers(self.entry, self.config.provider)
        for provider in chosen:
            if self.config.provider is not None and not has_code(provider):
                shows = as_typed("profile", f"kernel={self.loaded.where}", f"provider={provider.name}")
                raise UserError(
                    f"{provider.name} of {self.loaded.name} has no code to show here: it calls what torch, a "
                    f"package or the C++ compiler brings. `{shows}` shows what it launches."
                )
        names = [provider.name for provider in chosen if has_code(provider)]
        if not names:
            raise UserError(
                f"{self.loaded.name} has no provider in Triton, Gluon, Numba or CUDA, and none compiled."
            )
        compiled = {provider.name for provider in chosen if provider.compiled}
        # A Triton, Numba or CUDA point needs no GPU to be compiled for one.
        gpu = device.capabilities(self.device) if self.native in self.target.architectures else None
        for_gpus = self._plan(names, Target("cuda", gpu))
        here = self._plan(names, Target(self.device.kind, device.capabilities(self.device)))
        points = [point for point in for_gpus.points if point.provider not in compiled]
        if self.config.preset.closer == "largest":
            wanted = choice.largest(for_gpus, self.config.pin)
            points = [point for point in points if point.problem in wanted]
        shown = [middle(here, name) for name in names if name in compiled]
        if self.config.lazily and self.device.kind == "cpu":
            every = len(points)
            points = [point for point in points if self._was_compiled(point)]
            self.left_out = [] if len(points) == every else [self._until_asked_for()]
            return points, [point for point in shown if point is not None]
        self.left_out = of_providers(for_gpus, set(names) - compiled).refusals()
        self.left_out += of_providers(here, compiled).refusals()
        if not points and not any(shown):
            raise UserError("; ".join(self.left_out) or f"{self.loaded.name} has no points here.")
        return points, [point for point in shown if point is not None]

    def _was_compiled(self, point: Point) -> bool:
        """Whether an earlier run has rows of a point's code: of its library, or of its own."""
        return (self.loaded.kernel.provider(point.provider).extension or point) in self._compiled

    def _until_asked_for(self) -> str:
        places = f"output={self.config.output}", f"artifacts={self.config.artifacts}"
        return (
            "No GPU here runs what Triton, Numba and nvcc would compile: it is left out until asked for, "
            f"{as_typed('codegen', f'kernel={self.loaded.where}', *places)}"
        )

    def _plan(self, names: Sequence[str], target: Target) -> Plan:
        """What a sweep would plan of these providers: by themselves none that the preset leaves out."""
        planned = plan(self.entry, self.config.preset.name, target, self.config.pin, self.config.provider)
        return of_providers(planned, names)

    def rows(self, points: Sequence[Point], shown: Sequence[Point]) -> list[CodeRow]:
        """All rows of the points, in an order that does not depend on which were kept; their texts are
        written to the artifacts. ``shown`` are the points at which compiled providers are looked into."""
        target = self.target
        launched = [point for point in points if target.provider(point).language in LAUNCHED]
        cuda = [point for point in points if target.provider(point).language == "cuda"]
        with console.status(f"Compiling {self.loaded.name} …"):
            rows = LaunchedCode(self.earlier, self.texts).rows(launched)
            rows += CudaCode(self.earlier, self.texts, warn).rows(cuda, alone=not launched and not shown)
            return rows + [inductor_code.row(self.earlier, self.texts, point, warn) for point in shown]

    def listing(self, rows: Sequence[CodeRow]) -> None:
        """Print one listing: for this machine's GPU or compute capability 9.0 if that is there, of what a
        point is known to launch before what none is."""
        shown = [row for row in rows if row.artifact]
        if not shown:
            raise UserError(next((row.error for row in rows if row.error), "there is no code to show."))
        wanted = [row for row in shown if row.native or row.architecture == WITHOUT_GPU] or shown
        row = min(wanted, key=lambda row: row.point is None)
        text = (self.config.artifacts / str(row.artifact)).read_text()
        if row.language != "inductor":
            head, *parts = text.split("\n== ")
            chosen = [part for part in parts if part.startswith(self.config.show.upper())]
            text = "\n== ".join([head, *(chosen or parts)])
        say(text.rstrip())
        others = len({one.artifact for one in shown}) - 1
        if others:
            kernel = self.loaded.kernel
            parameters = [
                name for one in (self.config.provider or ()) for name in kernel.provider(one).variables()
            ]
            names = [SIZE, *kernel.dimensions(), *parameters, "architectures", "function"]
            say(
                f"\n{others} more are in {self.target.folder}; "
                f"{', '.join(f'{name}=' for name in names)} choose, show=sass shows machine code."
            )

    def compare(self) -> None:
        """Print what differs between two variants, in numbers."""
        if not (self.config.a and self.config.b):
            raise UserError("a comparison needs both: a=triton_online/1024x8w b=triton_online/1024x4w.")
        both = [self.variant(text) for text in (self.config.a, self.config.b)]
        found = [(text, stage.one(text, stage.rows([point], ()), point)) for text, stage, point in both]
        print_wide(console, comparison(*found))

    def variant(self, text: str) -> tuple[str, Codegen, Point]:
        """A variant's own stage and its point: what it leaves open is the plan's first value.

        Raises UserError for one that has no numbers.
        """
        chosen = Variant.read(text, self.entry)
        provider = self.loaded.kernel.provider(chosen.provider)
        if provider.compiled:
            prints = as_typed("codegen", f"kernel={self.loaded.where}", f"provider={provider.name}")
            raise UserError(
                f"'{text}' can't be compared: what is kept of it is Inductor's source, which has no numbers; "
                f"`{prints}` prints it."
            )
        options: dict[str, Any] = {
            "provider": (provider.name,),
            "pin": self._pins_of(chosen),
            "architectures": (chosen.architecture or self.native or WITHOUT_GPU,),
            "function": chosen.function or self.config.function,
        }
        try:
            stage = Codegen(validated(CodegenConfig, self.config.model_dump() | options), self.device)
            points, _ = stage.points()
        except UserError as error:
            raise UserError(f"'{text}': {error}") from error
        return text, stage, points[0]

    def _pins_of(self, variant: Variant) -> Mapping[str, Sequence[Value]]:
        """The variant's pins over the command's, without the parameters that only other providers have."""
        kernel = self.loaded.kernel
        others = {name for provider in kernel.providers for name in provider.variables()}
        others -= kernel.provider(variant.provider).variables().keys()
        pins = {name: values for name, values in self.config.pin.items() if name not in others}
        return {**pins, **variant.pins}

    def one(self, text: str, rows: Sequence[CodeRow], point: Point) -> CodeRow:
        """The row of a point that a variant means. Raises UserError when there is none, or when several
        functions could be."""
        counted = [row for row in rows if row.mix is not None]
        known = [row for row in counted if row.launch_known] or counted
        words = [value for value in point.problem.values() if isinstance(value, str)]
        known = [row for row in known if is_for(row.function, words)] or known
        if not known:
            reason = next((row.error for row in rows if row.error), "nothing was compiled")
            raise UserError(f"'{text}' has no code to compare: {reason}.")
        names = list(dict.fromkeys(row.function for row in known))
        if len(names) > 1:
            unknown = (
                "" if known[0].launch_known else ", for which one a point launches is known on a GPU only"
            )
            raise UserError(
                f"'{text}' may be any of {', '.join(names)}: write one{unknown}, as in "
                f"'\"{point.provider}/{names[0]}\"'."
            )
        return known[0]


def of_providers(planned: Plan, providers: Collection[str]) -> Plan:
    """Of a plan what is of these providers: points, and configurations that are none."""
    workloads = {point: name for point, name in planned.workloads.items() if point.provider in providers}
    refused = {one: count for one, count in planned.refused.items() if one[0] in providers}
    return Plan(tuple(workloads), workloads, Counter(refused))


def middle(planned: Plan, provider: str) -> Point | None:
    """A provider's point at a middle problem of the first one's workload and words; None where it has no
    points."""
    points = [point for point in planned.points if point.provider == provider]
    if not points:
        return None
    alike = [
        point
        for point in points
        if (planned.workloads[point], order(point)[2]) == (planned.workloads[points[0]], order(points[0])[2])
    ]
    problems = sorted({order(point)[3]: point for point in reversed(alike)}.items())
    return problems[len(problems) // 2][1]


if __name__ == "__main__":
    run_each("codegen", CodegenConfig, run)
