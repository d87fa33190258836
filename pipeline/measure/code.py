"""Generated code as rows: what each function that a point launches asks of a GPU, and what it consists of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from kernels.point import Point
from pipeline.measure.disassembler import Analysis
from pipeline.measure.ledger import write_atomically
from pipeline.measure.occupancy import occupancy
from pipeline.measure.record import Record
from pipeline.measure.sass import Mix, mix


class Joined(Record):
    """What a row of evidence shares with the ledger: the key of the measurement, and its point's fields.

    ``key`` is None for a function of which it is not known here which points launch it.
    """

    key: str | None
    kernel: str
    provider: str | None = None
    size: int | None = None
    dtype: str | None = None
    block_size: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None


class CodeRow(Joined):
    """One function as compiled for one architecture, for one point; numbers are None where ``error`` says why
    there is no code.

    ``native`` tells the code that this machine's GPU runs, so the rows whose key's time is about this very
    code. ``threads`` is the block's, ``shared`` its bytes of shared memory: all that a launch asks for where
    the launch is known (``launch_known``), else what the compiler knows. ``artifact`` is where its listing
    lies, with PTX, SASS and TTGIR beside it.
    """

    language: Literal["triton", "cuda", "inductor"]
    architecture: str | None
    native: bool
    function: str
    error: str | None = None
    registers: int | None = None
    shared: int | None = None
    stack: int | None = None
    threads: int | None = None
    launch_known: bool = False
    blocks_per_sm: int | None = None
    occupancy: float | None = None
    limited_by: str | None = None
    mix: Mix | None = None
    compiler: str
    environment: str
    artifact: str | None = None

    def row(self) -> dict[str, Any]:
        """The flat form that a file holds; the mix's fields stand beside the others."""
        row = self.model_dump(mode="json", exclude={"mix"})
        return row | (self.mix.model_dump() if self.mix else dict.fromkeys(Mix.model_fields))

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> CodeRow:
        """Rebuild a record from its flat form; raises pydantic.ValidationError for anything else."""
        rest = dict(row)
        mixed = {name: rest.pop(name, None) for name in Mix.model_fields}
        counted = any(value is not None for value in mixed.values())
        return cls.model_validate(rest | {"mix": mixed if counted else None})


def joined(point: Point, key: str | None) -> dict[str, Any]:
    """The fields of ``Joined`` for a point."""
    return {"key": key, **asdict(point)}


def used(analysis: Analysis, architecture: str, threads: int, shared: int) -> dict[str, Any]:
    """The numbers of a CodeRow that follow from a function and its launch; ``shared`` is what the launch asks
    for on top."""
    resources = analysis.resources
    total = resources.shared + shared
    limits = occupancy(architecture, resources.registers, total, threads)
    return {
        "registers": resources.registers,
        "shared": total,
        "stack": resources.stack,
        "threads": threads,
        "mix": mix(analysis.instructions),
        **(limits.model_dump() if limits else {}),
    }


R = TypeVar("R", bound=Record)


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Replace a file of rows atomically, a JSON line each."""
    write_atomically(path, b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows))


def read_lines(path: Path, make: Callable[[dict[str, Any]], R], warn: Callable[[str], None]) -> list[R]:
    """The rows of a file, in its order; none if there is no file. A line that is no such row is skipped with
    a sentence to ``warn``."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append(make(json.loads(line)))
        except (ValueError, TypeError, ValidationError):
            warn(f"{path}:{number} is not readable; skipped.")
    return rows
