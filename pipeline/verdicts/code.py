"""What the compiler made of a point on two sides: the functions whose numbers differ.

``python -m pipeline.codegen`` takes each side's code apart, in that side's tree. It needs no GPU, so that it
waits for no lock.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import kernels
from kernels.contract import shown
from pipeline import UserError
from pipeline.points import problems
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow, read_lines

MOST = 8
"""Functions that are shown, the others are counted: a library of templates has hundreds."""

Numbers = Mapping[str, int]
"""Registers, bytes of shared memory and instructions of a function."""


def of_side(root: Path, where: str, point: Point, architecture: str) -> dict[str, Numbers]:
    """The numbers of each function that a tree compiles for a point's provider: of a Triton provider those of
    the point, of a CUDA one all that its library has. Raises UserError with codegen's sentence where there is
    none."""
    problem = problems.make(kernels.load(where).kernel.problem, point.problem)
    pins = {**problems.values_of(problem), **point.parameters}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "pipeline.codegen", f"kernel={where}", f"provider={point.provider}"),
            *("device=cpu", f"architectures=[{architecture}]", f"output={folder}", f"artifacts={folder}"),
            *(f"{name}={shown(value)}" for name, value in pins.items()),
        ]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or ["codegen says nothing"]
            raise UserError(said[0].removeprefix("error: "))
        rows = [
            row
            for path in Path(folder).glob("codegen/*/*.jsonl")
            for row in read_lines(path, CodeRow, lambda sentence: None)
        ]
    found: dict[str, Numbers] = {
        row.function: {
            "registers": row.registers or 0,
            "shared": row.shared or 0,
            "instructions": row.mix.instructions,
        }
        for row in rows
        if row.mix is not None
    }
    if not found:
        raise UserError(next((row.error for row in rows if row.error), f"{point.provider} has no code."))
    return found


def differences(a: Mapping[str, Numbers], b: Mapping[str, Numbers]) -> list[str]:
    """A line for each function whose numbers differ or that one side alone has, the largest differences in
    instructions first; none where both have the same."""
    changed = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    changed.sort(key=lambda name: -abs(_instructions(b.get(name)) - _instructions(a.get(name))))
    lines = [f"{name}: {_difference(a.get(name), b.get(name))}" for name in changed[:MOST]]
    if len(changed) > MOST:
        lines.append(f"{len(changed) - MOST} more functions differ.")
    return lines


def _difference(a: Numbers | None, b: Numbers | None) -> str:
    if a is None or b is None:
        side, numbers = ("b", b) if a is None else ("a", a)
        assert numbers is not None, "one side has it"
        return f"only {side} has it, {', '.join(f'{what} {value}' for what, value in numbers.items())}"
    return ", ".join(f"{what} {a[what]} -> {b[what]}" for what in a if a[what] != b[what])


def _instructions(numbers: Numbers | None) -> int:
    return 0 if numbers is None else numbers["instructions"]
