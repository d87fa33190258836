"""Stage ``sweep``: verify and time the grid of one kernel on one device.

    python -m pipeline.sweep kernel=softmax block_size=[512,1024] provider=triton_online

Measures the points that the ledger does not hold yet, appends each as it is measured, and ends with
a table. Stopped in any way, the same command goes on where it was.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import yaml

import kernels
from kernels.point import Point
from pipeline.config import ROOT, SweepConfig, console, run_stage
from pipeline.errors import UserError
from pipeline.measure import calibration, commit, device, grid, results, table
from pipeline.measure.ceiling import Ceilings, rate
from pipeline.measure.compiler import CompilePool
from pipeline.measure.crew import Crew
from pipeline.measure.ledger import Ledger, write_atomically
from pipeline.measure.lock import DeviceLock
from pipeline.measure.progress import Progress
from pipeline.measure.record import Measurement, Origin, Outcome
from pipeline.measure.schedule import Schedule
from pipeline.measure.supervisor import Supervisor

if TYPE_CHECKING:
    from kernels.contract import Kernel

warn = partial(console.print, style="yellow", highlight=False)


def run(config: SweepConfig) -> None:
    """Measure what the ledger lacks, print the table, publish."""
    devices = device.resolve_all(config.device)
    environment = device.fingerprint(devices[0])
    with ExitStack() as stack:
        # Held from before the ledger is read: a second sweep finds in it what the first one measured.
        for chosen in devices:
            stack.enter_context(DeviceLock(chosen, config.wait_s, warn))
        workers = [
            stack.enter_context(Supervisor(chosen, config.timing, config.seed, config.point_timeout_s))
            for chosen in devices
        ]
        pool = None
        if environment.compute_capability is not None:
            # Both take seconds to be ready; this process needs them too, to import torch.
            for worker in workers:
                worker.start()
            pool = stack.enter_context(CompilePool(environment.compute_capability))
        kernel = kernels.load(config.kernel.name)
        points = grid.expand(kernel, config.provider, config.grids())
        sweep = Sweep(config, workers, pool, environment, kernel)
        try:
            sweep.measure(sweep.missing(points))
        except BaseException:
            # A full disk stops both; the first error's sentence is the one that says how to go on.
            with suppress(UserError):
                sweep.compact(points)
            sweep.show(points)
            raise
        sweep.compact(points)
        sweep.show(points)
    if config.tracking.name != "none":
        publish(config)


class Sweep:
    """One run over the points of one kernel on the devices of one model."""

    def __init__(
        self,
        config: SweepConfig,
        workers: Sequence[Supervisor],
        pool: CompilePool | None,
        environment: device.Environment,
        kernel: Kernel,
    ) -> None:
        self.config = config
        self.workers = workers
        self.pool = pool
        self.device = workers[0].device
        self.slug = self.device.slug
        self.environment = environment
        self.kernel = kernel
        self.sources = {p.name: grid.source_digest(kernel.name, p) for p in kernel.providers}
        self.commit, self.dirty = commit.head(ROOT)
        self.ledger = Ledger(results.ledger_path(config.output, kernel.name, self.slug), warn)
        self.measured: set[Point] = set()
        self.noise_floor: float | None = None
        self.begin = monotonic()

    def key(self, point: Point) -> str:
        """The key that a measurement of the point would have now."""
        return grid.key(
            point,
            self.sources[point.provider],
            self.environment.digest,
            self.config.timing,
            self.config.seed,
        )

    def missing(self, points: Sequence[Point]) -> list[Point]:
        """The points that have to be measured."""
        if self.config.remeasure:
            return list(points)
        known = {row.key for row in self.ledger.rows()}
        return [point for point in points if self.key(point) not in known]

    def measure(self, points: Sequence[Point]) -> None:
        """Measure the points and append each to the ledger."""
        if not points:
            console.print(
                f"Nothing to measure: {self.ledger.path} holds every point. "
                "Write remeasure=true to measure again.",
                highlight=False,
            )
            return
        compiling = self.compile_ahead(points)
        ceilings = self.describe(self.workers[0])
        for worker in self.workers:
            worker.overhead = ceilings.overhead
        broken = self.build(points)
        with Progress(console, f"{self.kernel.name} on {self.slug}", len(points)) as progress:

            def report(point: Point, outcome: Outcome, measured_on: device.Device) -> None:
                self.ledger.append(self.measurement(point, outcome, measured_on, ceilings))
                self.measured.add(point)
                progress.advance(str(point))

            for point in points:
                if reason := broken.get(point.provider):
                    shape = self.kernel.shape_of(point)
                    outcome = Outcome(status="compile_error", error=reason, shape=shape)
                    report(point, outcome, self.device)
            sound = [point for point in points if point.provider not in broken]
            crew = Crew(self.kernel, self.workers, self.control(points), report)
            schedule = Schedule(sound, compiling, self.compiles_itself, len(self.workers))
            self.noise_floor = crew.measure(schedule, len(sound))

    def control(self, points: Sequence[Point]) -> Point:
        """The point that is measured again and again for the noise floor: the baseline at a middle size, with
        rows of its own only where no point is without."""
        rows = None if any(point.rows is None for point in points) else points[0].rows
        sizes = sorted({point.size for point in points if point.rows == rows})
        middle = sizes[len(sizes) // 2]
        return Point(self.kernel.name, self.kernel.baseline, middle, points[0].dtype, rows=rows)

    def compiles_itself(self, point: Point) -> bool:
        """Whether the point is compiled by the worker that measures it."""
        return self.kernel.provider(point.provider).compiles_itself

    def compile_ahead(self, points: Sequence[Point]) -> Mapping[Point, Future[None]]:
        """Start to compile the Triton points, where there is a GPU to compile for."""
        if self.pool is None:
            return {}
        triton = [point for point in points if self.kernel.provider(point.provider).is_triton]
        return self.pool.submit(triton)

    def describe(self, worker: Supervisor) -> Ceilings:
        """Write beside the ledger what it can't be read without: the environment, the ceilings and the
        configuration. Returns the ceilings."""
        output = self.config.output
        write_atomically(
            results.environment_path(output, self.slug),
            self.environment.model_dump_json(indent=2).encode() + b"\n",
        )
        write_atomically(
            results.config_path(output, self.kernel.name, self.slug),
            yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=True).encode(),
        )
        path = results.ceilings_path(output, self.slug)
        known = [path, results.ceilings_path(ROOT / "results", self.slug)]
        return calibration.known_or_measured(worker, self.environment, known, path)

    def build(self, points: Sequence[Point]) -> dict[str, str]:
        """Build the extensions that the points need here; the reason by provider for those that fail."""
        from pipeline.measure import extension

        broken = {}
        for name in sorted({point.provider for point in points}):
            provider = self.kernel.provider(name)
            if provider.extension is None or self.device.kind not in provider.devices:
                continue
            try:
                extension.build(self.kernel.name, [provider.extension])
            except UserError as error:
                warn(f"{self.kernel.name}/{name} was not built: {error}")
                broken[name] = str(error)
        return broken

    def measurement(
        self, point: Point, outcome: Outcome, measured_on: device.Device, ceilings: Ceilings
    ) -> Measurement:
        """The ledger's line for an outcome."""
        from kernels.contract import DTYPES

        dtype = DTYPES[point.dtype]
        timing = outcome.timing
        return Measurement(
            key=self.key(point),
            point=point,
            outcome=outcome,
            rate=timing
            and rate(
                timing.median_us,
                self.kernel.bytes(outcome.shape, dtype),
                self.kernel.flops(outcome.shape),
                point.dtype,
                ceilings,
            ),
            origin=Origin(
                gpu=self.slug,
                device=str(measured_on),
                environment=self.environment.digest,
                source=self.sources[point.provider],
                commit=self.commit,
                dirty=self.dirty,
                measured_at=datetime.now(UTC),
                image=self.environment.image,
                base_image=self.environment.base_image,
            ),
        )

    def compact(self, points: Sequence[Point]) -> None:
        """Compact the ledger.

        Rows of points that this sweep did not ask for stay while they were measured from today's source in
        today's environment, those of a peer also where its package is missing; others could only mislead.
        """
        asked = set(points)
        peer = grid.peer_digest(self.kernel.name)
        for measured in self.ledger.rows():
            if measured.point in self.measured:
                self.ledger.replace(measured.with_noise_floor(self.noise_floor))
        self.ledger.compact(
            lambda row: (
                row.point in asked
                or (
                    row.origin.source == self.sources.get(row.point.provider, peer)
                    and row.origin.environment == self.environment.digest
                )
            )
        )

    def show(self, points: Sequence[Point]) -> None:
        """Print this sweep's table and closing line."""
        rows = [row for point in points if (row := self.ledger.get(point)) is not None]
        table.show(console, rows, {self.kernel.name: self.kernel.baseline}, str(self.ledger.path))
        noise = "" if self.noise_floor is None else f"; noise floor {self.noise_floor:.1%}"
        # Those of a sweep that was stopped before it came to them.
        older = sum(row.key != self.key(row.point) for row in rows)
        others = (
            f" {older} more are of an older source, environment or timing: "
            "run the same command to measure them."
            if older
            else ""
        )
        console.print(
            f"{len(self.measured)} points measured in {monotonic() - self.begin:.1f} s{noise}. "
            f"{len(rows) - older} of {len(points)} are in {self.ledger.path}.{others}",
            highlight=False,
            soft_wrap=True,
        )


def publish(config: SweepConfig) -> None:
    """Log the ledger to MLflow, in a process of its own: a tracker in trouble harms no measurement."""
    command = [
        sys.executable,
        "-m",
        "pipeline.publish",
        f"input={config.output}",
        "reports=null",
        "artifacts=null",
    ]
    command += [f"kernel={config.kernel.name}", f"tracking={config.tracking.name}"]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    run_stage("sweep", SweepConfig, run)
