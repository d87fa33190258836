"""Stage ``codegen``: compile a kernel's variants and disassemble them.

    python -m pipeline.codegen kernel=softmax provider=triton_online block_size=1024 num_warps=8
    python -m pipeline.codegen kernel=softmax provider=triton_online,triton_row size=4096
    python -m pipeline.codegen kernel=matmul provider=triton_tiled show=sass

Compiles every Triton and Numba variant of the kernel's plan and disassembles its CUDA libraries, for each
architecture and on any host. It also keeps the source that Inductor generates. A kernel is skipped if its
rows are of today's sources, compilers and options. With a single provider the annotated listing is printed.
With lazily=true a host without a GPU compiles no GPU code, and keeps the rows of GPU code as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial

from kernel_pipeline import json_lines
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.point import Point, order
from kernel_pipeline.toolchain.extension import WITHOUT_GPU
from kernel_pipeline.toolchain.resources import BuildReport

from . import as_typed
from .command.options import CodegenConfig
from .command.run import console, for_each, run_each, say, warn
from .inspection import disassembler, inductor_code
from .inspection.code_target import LAUNCHED, Basis, CodeTarget, Texts, basis_of, has_code
from .inspection.cuda_code import CudaCode
from .inspection.programs import LaunchedCode
from .keys.identity import Identity
from .points import choice
from .points.catalog import SIZE
from .points.notation import plural
from .points.plan import Plan, Target, chosen_providers, plan
from .reporting.code_table import table
from .store import results
from .store.evidence import CodeRow, committed, read_lines


def run(configs: Sequence[CodegenConfig]) -> None:
    """Run ``of_kernel`` for each kernel."""
    chosen = device.resolve(configs[0].device)  # once, before CUDA_VISIBLE_DEVICES is set
    where = results.folder_for(configs[0].output, chosen.kind) / "codegen"
    for_each(configs, partial(of_kernel, chosen=chosen), where)


def of_kernel(config: CodegenConfig, chosen: device.Device) -> None:
    """Write rows and texts, and print the table or a listing."""
    disassembler.find_tools()
    stage = Codegen(config, chosen)
    points, shown = stage.points()
    if not stage.shows_listing and stage.is_done(points, shown):
        say(f"Nothing to compile: {stage.path} was made from the current sources, compilers and options.")
        return
    rows = [*stage.kept, *stage.rows(points, shown)]
    stage.texts.keep(stage.kept)
    json_lines.write(stage.path, rows)
    stage.texts.remove_others()
    if stage.shows_listing:
        stage.listing(rows)
    elif points:
        table(rows, f"{stage.loaded.name}: resources of its functions").print(console)
    for line in stage.left_out:
        say(line)
    say(f"{len(rows)} row{'s' * (len(rows) != 1)}: {stage.path}, listings: {stage.target.folder}")


class Codegen:
    """One run over the code of one kernel."""

    def __init__(self, config: CodegenConfig, chosen: device.Device) -> None:
        self.config = config
        self.entry = config.entry
        self.loaded = self.entry.loaded
        self.device = chosen
        identity = Identity(self.loaded, fingerprint(self.device), config.timing.settings, config.seed)
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
            built=results.read_if_there(
                BuildReport, results.build_path(output, self.loaded.name, self.device.slug)
            ),
        )
        self.target.folder.parent.mkdir(parents=True, exist_ok=True)
        self.shows_listing = config.provider is not None and len(config.provider) == 1
        self.is_lazy = config.lazily and chosen.kind == "cpu"
        known = read_lines(self.path, CodeRow, lambda sentence: None)  # unreadable lines are written anew
        self.kept = [row for row in known if self.is_lazy and row.language != "inductor"]
        self.known = [row for row in known if row not in self.kept]
        self.texts = Texts(self.target)
        self._cuda = CudaCode(self.target, self.texts, warn)
        self.left_out: list[str] = []

    def is_done(self, points: Sequence[Point], shown: Sequence[Point]) -> bool:
        """Whether an earlier run made exactly the rows of this run. Their texts may be missing where the rows
        are in git, which holds no texts."""
        launched, cuda = self._by_compiler(points)
        try:
            wanted: set[Basis] = LaunchedCode(self.target, self.texts).bases(launched)
            wanted |= self._cuda.bases(cuda, alone=not launched and not shown)
        except UserError:  # ``rows`` raises it again, and it is reported there
            return False
        wanted |= {inductor_code.basis(self.target, point) for point in shown}
        if not wanted or wanted != set(map(basis_of, self.known)):
            return False
        artifacts = self.config.artifacts
        without = [row for row in self.known if row.artifact and not (artifacts / row.artifact).is_file()]
        return not without or set(without) <= committed(self.path, self.known)

    def _by_compiler(self, points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
        """Split points into points that a launch compiles and points of CUDA libraries."""
        launched = [point for point in points if self.target.provider(point).language in LAUNCHED]
        return launched, [point for point in points if self.target.provider(point).language == "cuda"]

    def points(self) -> tuple[list[Point], list[Point]]:
        """Return the points whose code is compiled for an architecture, and one point of each provider that
        Inductor compiles. Raises UserError for a provider without code to show, and if there is no point."""
        chosen = chosen_providers(self.entry, self.config.provider)
        for provider in chosen:
            if self.config.provider is not None and not has_code(provider):
                shows = as_typed("profile", f"kernel={self.loaded.where}", f"provider={provider.name}")
                raise UserError(
                    f"{provider.name} of {self.loaded.name} has no code to show here: it calls torch, a "
                    f"package or C++. `{shows}` shows its launches."
                )
        names = [provider.name for provider in chosen if has_code(provider)]
        if not names:
            raise UserError(
                f"{self.loaded.name} has no provider in Triton, Gluon, Numba or CUDA, and none that "
                "torch.compile compiles."
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
        if self.is_lazy:
            self.left_out = [self._until_asked_for()] if points else []
            return [], [point for point in shown if point is not None]
        self.left_out = of_providers(for_gpus, set(names) - compiled).refusals()
        self.left_out += of_providers(here, compiled).refusals()
        if not points and not any(shown):
            raise UserError("; ".join(self.left_out) or f"{self.loaded.name} has no points on this machine.")
        return points, [point for point in shown if point is not None]

    def _until_asked_for(self) -> str:
        places = f"output={self.config.output}", f"artifacts={self.config.artifacts}"
        return (
            "This machine has no GPU, so code of Triton, Numba and nvcc was left out. To compile it, run "
            f"{as_typed('codegen', f'kernel={self.loaded.where}', *places)}"
        )

    def _plan(self, names: Sequence[str], target: Target) -> Plan:
        """Return a sweep's plan of these providers. A provider that the preset leaves out has to be named."""
        planned = plan(self.entry, self.config.preset.name, target, self.config.pin, self.config.provider)
        return of_providers(planned, names)

    def rows(self, points: Sequence[Point], shown: Sequence[Point]) -> list[CodeRow]:
        """Compile the points, write their texts and return all rows. ``shown`` are the points of providers
        that Inductor compiles."""
        launched, cuda = self._by_compiler(points)
        with console.status(f"Compiling {self.loaded.name} …"):
            rows = LaunchedCode(self.target, self.texts).rows(launched)
            rows += self._cuda.rows(cuda, alone=not launched and not shown)
            return rows + [inductor_code.row(self.target, self.texts, point, warn) for point in shown]

    def listing(self, rows: Sequence[CodeRow]) -> None:
        """Print the listings of one point's launches, or of one CUDA function. Code for this machine's GPU or
        for compute capability 9.0 is preferred, and then a function that a point is known to launch."""
        shown = [row for row in rows if row.artifact]
        if not shown:
            raise UserError(next((row.error for row in rows if row.error), "there is no code to show."))
        wanted = [row for row in shown if row.native or row.architecture == WITHOUT_GPU] or shown
        first = min(wanted, key=lambda row: row.point is None)
        together = [first]
        if first.language in LAUNCHED:
            together = [
                row for row in wanted if (row.key, row.architecture) == (first.key, first.architecture)
            ]
            name = self.config.function or ""
            there = dict.fromkeys(row.function for row in together)
            together = [row for row in together if name in row.function]
            if not together:
                raise UserError(
                    f"no function of {self.loaded.name} has '{name}' in its name: "
                    f"there are {', '.join(there)}."
                )
        printed = {row.artifact: row for row in reversed(together)}
        say("\n\n".join(map(self._text, reversed(printed.values()))))
        others = len({one.artifact for one in shown} - printed.keys())
        if others:
            kernel = self.loaded.kernel
            parameters = [
                name for one in (self.config.provider or ()) for name in kernel.provider(one).variables()
            ]
            names = [SIZE, *kernel.dimensions(), *parameters, "architectures", "function"]
            say(
                f"\n{self.target.folder} has {plural(others, 'more text')}. "
                f"Choose by {', '.join(f'{name}=' for name in names)}; show=sass shows machine code."
            )

    def _text(self, row: CodeRow) -> str:
        """Return the listing of a row, or the form of its code that ``show`` names."""
        path = self.config.artifacts / str(row.artifact)
        text = path.read_text()
        if row.language != "inductor":
            head, *parts = text.split("\n== ")
            chosen = [part for part in parts if part.startswith(self.config.show.upper())]
            if self.config.show in ("ttgir", "llir"):
                whole = path.with_name(f"{path.stem}.{self.config.show}")
                if not whole.is_file():
                    raise UserError(
                        f"only Triton's kernels have show={self.config.show}, and {row.function} is in "
                        f"{row.language}; write show=ptx or show=sass."
                    )
                chosen = [f"{self.config.show.upper()}\n{whole.read_text()}"]
            text = "\n== ".join([head, *(chosen or parts)])
        return text.rstrip()


def of_providers(planned: Plan, providers: Collection[str]) -> Plan:
    """Return the part of a plan that belongs to these providers."""
    workloads = {point: name for point, name in planned.workloads.items() if point.provider in providers}
    refused = {one: count for one, count in planned.refused.items() if one[0] in providers}
    return Plan(tuple(workloads), workloads, Counter(refused))


def middle(planned: Plan, provider: str) -> Point | None:
    """Return a provider's point in the middle of the problems that share the workload and the words of its
    first point; None if it has no points."""
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
