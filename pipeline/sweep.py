"""Stage ``sweep``: verify and time the grid of one kernel on one device.

    python -m pipeline.sweep kernel=softmax block_size=[512,1024] provider=triton_online

Measures the points that the ledger does not hold yet, appends each as it is measured, and ends with
a table. Stopped in any way, the same command goes on where it was.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import yaml

import kernels
from kernels.contract import DTYPES, Kernel
from kernels.point import AXES, Point
from pipeline.config import ROOT, SweepConfig, console, run_stage
from pipeline.errors import UserError, unknown
from pipeline.measure import calibration, commit, device, extension, grid, results, table
from pipeline.measure.ceiling import Ceilings, rate
from pipeline.measure.ledger import Ledger, write_atomically
from pipeline.measure.progress import Progress
from pipeline.measure.record import Measurement, Origin, Outcome
from pipeline.measure.supervisor import Supervisor

warn = partial(console.print, style="yellow", highlight=False)


def run(config: SweepConfig) -> None:
    """Measure what the ledger lacks, print the table, publish."""
    chosen = device.resolve(config.device)
    environment = device.fingerprint(chosen)
    kernel = kernels.load(config.kernel.name)
    points = grid.expand(kernel, config.provider, axes(config))
    ceilings = calibration.known_or_measured(
        chosen,
        [results.ceilings_path(folder, chosen.slug) for folder in (config.output, ROOT / "results")],
        results.ceilings_path(config.output, chosen.slug),
    )
    sweep = Sweep(config, chosen, environment, kernel, ceilings)
    missing = sweep.missing(points)
    write_atomically(
        results.environment_path(config.output, chosen.slug),
        environment.model_dump_json(indent=2).encode() + b"\n",
    )
    write_atomically(
        results.config_path(config.output, kernel.name, chosen.slug),
        yaml.safe_dump(config.model_dump(mode="json"), sort_keys=True).encode(),
    )
    try:
        sweep.measure(missing)
    finally:
        sweep.finish(points)
    if config.tracking.name != "none":
        publish(config)


def axes(config: SweepConfig) -> dict[str, Sequence[int | str]]:
    """What the sweep varies: the kernel's grid for the preset, with the pinned axes in place of its own.

    Raises UserError where the kernel has no grid for the preset.
    """
    if config.preset.name not in config.kernel.grid:
        raise unknown(f"preset of {config.kernel.name}", config.preset.name, config.kernel.grid)
    values = config.kernel.grid[config.preset.name].model_dump()
    pins = {name: getattr(config, name) for name in ("size", "dtype", *AXES)}
    return values | {name: pin for name, pin in pins.items() if pin is not None}


class Sweep:
    """One run over the points of one kernel on one device."""

    def __init__(
        self,
        config: SweepConfig,
        chosen: device.Device,
        environment: device.Environment,
        kernel: Kernel,
        ceilings: Ceilings,
    ) -> None:
        self.config = config
        self.device = chosen
        self.environment = environment.digest
        self.kernel = kernel
        self.ceilings = ceilings
        self.sources = {p.name: grid.source_digest(kernel.name, p) for p in kernel.providers}
        self.commit, self.dirty = commit.head(ROOT)
        self.ledger = Ledger(results.ledger_path(config.output, kernel.name, chosen.slug), warn)

    def key(self, point: Point) -> str:
        """The key that a measurement of the point would have now."""
        return grid.key(
            point, self.sources[point.provider], self.environment, self.config.timing, self.config.seed
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
        broken = self.build(points)
        with (
            Supervisor(
                self.device, self.config.timing, self.config.seed, self.config.point_timeout_s
            ) as worker,
            Progress(console, f"{self.kernel.name} on {self.device.slug}", len(points)) as progress,
        ):
            for point in points:
                progress.at(str(point))
                shape = self.kernel.shape(point.size)
                reason = broken.get(point.provider)
                if reason is None:
                    outcome = worker.measure(point, shape)
                else:
                    outcome = Outcome(status="compile_error", error=reason, shape=shape)
                self.ledger.append(self.measurement(point, outcome))
                progress.advance()

    def build(self, points: Sequence[Point]) -> dict[str, str]:
        """Build the extensions that the points need here; the reason by provider for those that fail."""
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

    def measurement(self, point: Point, outcome: Outcome) -> Measurement:
        """The ledger's line for an outcome."""
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
                self.ceilings,
            ),
            origin=Origin(
                gpu=self.device.slug,
                environment=self.environment,
                source=self.sources[point.provider],
                commit=self.commit,
                dirty=self.dirty,
                measured_at=datetime.now(UTC),
            ),
        )

    def finish(self, points: Sequence[Point]) -> None:
        """Compact the ledger and print this sweep's table.

        Rows of points that this sweep did not ask for stay while they were measured from today's source in
        today's environment; others could only mislead.
        """
        asked = set(points)
        self.ledger.compact(
            lambda row: (
                row.point in asked
                or (
                    row.origin.source == self.sources.get(row.point.provider)
                    and row.origin.environment == self.environment
                )
            )
        )
        rows = [row for point in points if (row := self.ledger.get(point)) is not None]
        table.show(console, rows, {self.kernel.name: self.kernel.baseline}, str(self.ledger.path))
        console.print(f"{len(rows)} of {len(points)} points are in {self.ledger.path}.", highlight=False)


def publish(config: SweepConfig) -> None:
    """Log the ledger to MLflow, in a process of its own: a tracker in trouble harms no measurement."""
    command = [sys.executable, "-m", "pipeline.publish", f"input={config.output}", "reports=null"]
    command += [f"kernel={config.kernel.name}", f"tracking={config.tracking.name}"]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        sys.exit(code)


if __name__ == "__main__":
    run_stage("sweep", SweepConfig, run)
