"""What a caller gets at a problem, by a ledger: the rival ``dispatched`` of the finals.

The choice is made by the code that makes it for callers, ``kernels/ops/tuned.py``, and by the table that
would be written of the ledger. Of a held-out problem it is the table of somebody who never measured its
shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from kernels.contract import Gpu
from kernels.ops import rule, tuned
from kernels.ops.table import Table
from pipeline.execution.identity import Identity
from pipeline.points import problems
from pipeline.points.catalog import Entry
from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.store.finals import How
from pipeline.store.record import Measurement
from pipeline.verdicts import tuning


@dataclass(frozen=True)
class Dispatched:
    """What a caller gets at a problem: the row that a sweep has of it, and how it is chosen."""

    row: Measurement
    how: How


class Caller:
    """Somebody who calls a kernel on the GPU of a ledger."""

    def __init__(
        self, entry: Entry, rows: Sequence[Measurement], identity: Identity, gpu: Gpu | None
    ) -> None:
        self.entry = entry
        self.identity = identity
        self.gpu = gpu
        self.measured = tuning.measured(entry, rows, identity)
        self.rows = {
            row.point: row
            for row in rows
            if row.outcome.timing is not None and row.key == identity.key(row.point)
        }
        self._tables = cache(self._table)

    def gets(self, problem: Values, workload: str) -> Dispatched | None:
        """What is called at a problem; None where the ledger has no time of that there."""
        told = self.entry.config.workloads.get(workload)
        is_held_out = told is not None and told.held_out
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
        """The table of what was measured, without the problems of a shape."""
        some = [
            one
            for one in self.measured
            if without is None or tuple(sorted(rule.numbers(one.problem).items())) != without
        ]
        l2_bytes = 0 if self.gpu is None else self.gpu.l2_cache
        made = tuning.of_kernel(self.entry, some, (), l2_bytes)
        environment = self.identity.environment
        return Table(
            gpu=environment.gpu,
            name=environment.name,
            l2_bytes=l2_bytes,
            environment={},
            rule=tuned.rule_digest(),
            kernels={} if made is None else {self.entry.name: made},
        )
