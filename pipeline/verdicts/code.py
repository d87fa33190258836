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

from kernels.contract import shown
from pipeline import UserError
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow, read_lines

MOST = 8
"""Functions that are shown, the others are counted: a library of templates has hundreds."""

Numbers = Mapping[str, int]
"""Registers, bytes of shared memory and instructions of a function."""


def of_side(root: Path, where: str, point: Point, architecture: str) -> dict[str, Numbers]:
    """The numbers of each function that a tree compiles for a point's provider. Raises UserError with
    codegen's sentence where it has none."""
    pins = {**point.problem, **point.parameters}
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
    return {
        row.function: {
            "registers": row.registers or 0,
            "shared": row.shared or 0,
            "instructions": row.mix.instructions,
        }
        for row in rows
        if row.mix is not None
    }


def differences(a: Mapping[str, Numbers], b: Mapping[str, Numbers]) -> list[str]:
    """A line for each function that both have and whose numbers differ, those that differ by most
    instructions first."""
    changed = [name for name in a if name in b and a[name] != b[name]]
    changed.sort(key=lambda name: -abs(b[name]["instructions"] - a[name]["instructions"]))
    lines = []
    for name in changed[:MOST]:
        parts = [
            f"{what} {a[name][what]} -> {b[name][what]}" for what in a[name] if a[name][what] != b[name][what]
        ]
        lines.append(f"{name}: {', '.join(parts)}")
    if len(changed) > MOST:
        lines.append(f"{len(changed) - MOST} more functions differ.")
    return lines
