"""Run compute-sanitizer over a kernel's CUDA and Triton providers, at small problems.

    python -m pipeline.sanitize kernel=softmax
    python -m pipeline.sanitize kernel=matmul provider=cuda_tiled size=67 tools=[memcheck,racecheck,synccheck]
    python -m pipeline.sanitize kernel=layernorm tools=initcheck

Runs each of this repository's CUDA and Triton providers under memcheck and racecheck, once at each problem of
the preset ``smoke``. These problems are small and odd. Exits with 1 if anything was found or could not be
checked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from kernel_pipeline import json_lines
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.point import Point

from . import ROOT
from .command.options import SanitizeConfig
from .command.run import console, run_stage, say, warn
from .inspection import sanitizer
from .inspection.sanitizer import Sanitizer, SessionFindings
from .inspection.target import KernelTarget
from .reporting.tables import TextTable
from .store import commit, results
from .store.evidence import SanitizerRow, read_lines, sanitizer_path

LANGUAGES = ("cuda", "triton", "gluon")
"""The languages whose kernels may access memory out of bounds."""


def run(config: SanitizeConfig) -> None:
    """Check the providers, write rows, print them, and exit with 1 unless all are clean."""
    chosen = device.resolve(config.device)
    if chosen.kind != "cuda":
        raise UserError("compute-sanitizer needs an NVIDIA GPU: run this command on a host that has one.")
    target = KernelTarget(config.entry, chosen, config.timing.settings, config.seed, config.output)
    stage = Sanitize(config, target, sanitizer.find())
    points, left_out = stage.choose()
    rows = stage.check(points)
    stage.write(rows)
    show(rows, f"{target.title}: compute-sanitizer {stage.tool.version}")
    for line in left_out:
        say(line)
    say(f"{len(rows)} rows: {stage.path}")
    if any(row.status != "clean" for row in rows):
        sys.exit(1)


class Sanitize:
    """One run over the providers of one kernel on one GPU."""

    def __init__(self, config: SanitizeConfig, target: KernelTarget, tool: Sanitizer) -> None:
        self.config = config
        self.target = target
        self.tool = tool
        self.path = sanitizer_path(target.output, target.entry.name, target.slug)
        results.asked_for(self.path)
        loaded = target.entry.loaded
        self.commit, self.dirty = (
            commit.head(loaded.folder, ["."]) if loaded.is_outside else commit.head(ROOT)
        )

    def choose(self) -> tuple[dict[str, list[Point]], list[str]]:
        """Return the points by provider, and lines on providers without points. Raises UserError if the
        options leave no point."""
        config, kernel = self.config, self.target.kernel
        points, left_out = self.target.points(config.preset.name, config.pin, config.provider, "cuda")
        found: dict[str, list[Point]] = {}
        others = []
        for point in points:
            provider = kernel.provider(point.provider)
            if provider.is_own and provider.language in LANGUAGES:
                found.setdefault(point.provider, []).append(point)
            elif point.provider not in others:
                others.append(point.provider)
        if others:
            left_out.append(f"Left out: {', '.join(others)} (not written here in CUDA or Triton).")
        if not found:
            raise UserError(
                f"these options leave no provider of {self.target.entry.name} to check. {' '.join(left_out)}"
            )
        return found, left_out

    def check(self, points: Mapping[str, Sequence[Point]]) -> list[SanitizerRow]:
        """Return the rows of all providers, tool by tool.

        One process calls all providers. Its findings name no provider, and an error may spoil later calls. So
        if there is a finding, each provider is checked again in a separate process.
        """
        rows = []
        if self.target.device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.target.device.uuid
        with DeviceLock(self.target.device, self.config.wait_s, warn):
            for tool in self.config.tools:
                with console.status(f"{tool} over {', '.join(points)} …"):
                    every = [point for some in points.values() for point in some]
                    whole = self.session(tool, every)
                for name, some in points.items():
                    alone = len(points) > 1 and not whole.is_clean
                    with console.status(f"{tool} over {name} …"):
                        found = self.session(tool, some) if alone else whole
                    rows.append(self.row(name, tool, some, found))
        return sorted(rows, key=lambda row: (list(points).index(row.provider), row.tool))

    def session(self, tool: str, points: Sequence[Point]) -> SessionFindings:
        """Return a tool's findings in a process that calls the points."""
        where, config = self.target.entry.loaded.where, self.config
        return self.tool.session(tool, where, points, config.seed, config.timeout_s)

    def row(self, provider: str, tool: str, points: Sequence[Point], found: SessionFindings) -> SanitizerRow:
        """Return the row of a provider under a tool."""
        return SanitizerRow(
            kernel=self.target.entry.name,
            provider=provider,
            tool=tool,
            status="clean" if found.is_clean else "found" if found.errors or found.warnings else "failed",
            problems=tuple(dict.fromkeys(point.problem for point in points)),
            points=len(points),
            errors=found.errors,
            warnings=found.warnings,
            findings=found.findings,
            reason=found.trouble,
            version=self.tool.version,
            environment=self.target.environment.digest,
            commit=self.commit,
            dirty=self.dirty,
        )

    def write(self, rows: Sequence[SanitizerRow]) -> None:
        """Replace the rows of the same providers and tools, and drop the rows of providers that no longer
        exist."""
        known = [provider.name for provider in self.target.kernel.providers]
        old = read_lines(self.path, SanitizerRow, warn)
        together = {(row.provider, row.tool): row for row in [*old, *rows] if row.provider in known}
        order = sorted(together, key=lambda key: (known.index(key[0]), key[1]))
        json_lines.write(self.path, [together[key] for key in order])


def show(rows: Sequence[SanitizerRow], title: str) -> None:
    """Print the table, and the findings below it."""
    lines = []
    for row in rows:
        problems = ", ".join(" ".join(map(str, one.values())) for one in row.problems)
        counts = ("", "not checked") if row.status == "failed" else (str(row.errors), str(row.warnings))
        lines.append([row.provider, row.tool, problems, str(row.points), *counts])
    numbers = ("points", "errors", "warnings")
    bad = [place for place, row in enumerate(rows) if row.status != "clean"]
    TextTable(title, ("provider", "tool", "problems", *numbers), lines, numbers, strong=bad).print(console)
    for row in rows:
        for line in [*row.findings, *([f"not checked: {row.reason}"] if row.reason else [])]:
            say(f"{row.provider}, {row.tool}: {line}")


if __name__ == "__main__":
    run_stage("sanitize", SanitizeConfig, run)
