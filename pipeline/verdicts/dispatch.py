"""What a caller of ``kernel_pipeline.ops`` gets, by the times of a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from kernel_pipeline import problems
from kernel_pipeline.contract import Gpu
from kernel_pipeline.ops import chooser, rule, tuned
from kernel_pipeline.ops.table import Table
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point

from ..keys.identity import Identity
from ..points.catalog import Entry
from ..store.finals import How
from .tuning import measured, of_kernel


@dataclass(frozen=True)
class Dispatched:
    """The configuration that a caller gets at a problem: its row in the ledger, and how it is chosen."""

    row: Measurement
    how: How


class Caller:
    """Choose a kernel's configurations as ``kernel_pipeline.ops`` does on the GPU of a ledger."""

    def __init__(
        self, entry: Entry, rows: Sequence[Measurement], identity: Identity, gpu: Gpu | None
    ) -> None:
        self.entry = entry
        self.identity = identity
        self.gpu = gpu
        self.measured = measured(entry, rows, identity)
        self.rows = {
            row.point: row
            for row in rows
            if row.outcome.timing is not None and row.key == identity.key(row.point)
        }
        self._tables = cache(self._table)

    def gets(self, problem: Values, workload: str) -> Dispatched | None:
        """Return the configuration that a caller gets at a problem; None if the ledger has no time of it
        there. For a held-out workload, problems of the same shape are left out of the table."""
        declared = self.entry.config.workloads.get(workload)
        is_held_out = declared is not None and declared.held_out
        table = self._tables(tuple(sorted(rule.numbers(problem).items())) if is_held_out else None)
        kernel = self.entry.loaded.kernel
        chosen = tuned.choose_by(table, self.entry.loaded, problems.make(kernel.problem, problem), self.gpu)
        point = Point(
            kernel=self.entry.name,
            provider=chosen.provider,
            problem=problem,
            parameters=Values(chosen.parameters),
        )
        row = self.rows.get(point)
        return None if row is None else Dispatched(row, cast("How", chosen.how))

    def _table(self, without: tuple[tuple[str, int], ...] | None) -> Table:
        """Return the table of all measured problems except problems of one shape."""
        some = [
            one
            for one in self.measured
            if without is None or tuple(sorted(rule.numbers(one.problem).items())) != without
        ]
        gpu = self.gpu or Gpu((0, 0), 0, 0, 0)
        made = of_kernel(self.entry, some, (), self.gpu, gpu.l2_cache)
        environment = self.identity.environment
        return Table(
            gpu=environment.gpu,
            name=environment.name,
            compute_capability=environment.compute_capability,
            multiprocessors=gpu.multiprocessors,
            shared_memory=gpu.shared_memory,
            l2_bytes=gpu.l2_cache,
            environment={},
            rule=chooser.rule_digest(),
            kernels={} if made is None else {self.entry.name: made},
        )
