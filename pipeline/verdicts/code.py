"""Compare the compiled code of both sides of a comparison: the functions whose numbers differ.

``python -m pipeline.codegen`` disassembles each side's code in that side's tree. It needs no GPU, so it waits
for no lock. Two configurations of one provider in one tree have code of their own, except in CUDA, where they
share a library.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from math import log
from pathlib import Path

from kernel_pipeline import loading
from kernel_pipeline.contract import Kernel, shown
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.point import Point
from pipeline.points import notation, problems
from pipeline.store.evidence import CodeRow, read_lines
from pipeline.verdicts.rounds import Candidate, Match, Rounds

LANGUAGES = ("triton", "gluon", "numba", "cuda")
"""The languages whose compiled code has numbers."""

MOST = 8
"""The most functions that are listed; the others are counted, because a library of templates has hundreds."""

Numbers = Mapping[str, int]
"""The registers, bytes of shared memory and instructions of a function."""


def most_changed(measured_rounds: Rounds, kernel: Kernel) -> dict[str, Match]:
    """Return the match with the largest change for each provider that became faster or slower and has code
    with numbers."""
    estimates, verdicts = measured_rounds.estimates(), measured_rounds.verdicts()
    found: dict[str, Match] = {}
    for match in measured_rounds.matches:
        a, b = match.candidates
        if not _have_code_of_their_own(a, b, kernel) or verdicts[match, b] not in ("faster", "slower"):
            continue
        other = found.setdefault(b.point.provider, match)
        # A ratio of 0.5 is as far from 1 as one of 2.
        size, most = (abs(log(estimates[one, one.candidates[1]].ratio)) for one in (match, other))
        if size > most:
            found[b.point.provider] = match
    return found


def _have_code_of_their_own(a: Candidate, b: Candidate, kernel: Kernel) -> bool:
    language = kernel.provider(b.point.provider).language
    if a.side != b.side:
        return language in LANGUAGES
    return a.point.provider == b.point.provider and language in LANGUAGES and language != "cuda"


def explained(match: Match, architecture: str) -> list[str]:
    """Return lines on the differences in the code of a match's sides, or on why they are not known."""
    a, b = match.candidates
    provider = b.point.provider
    try:
        both = [of_side(one.side.root, one.side.where, one.point, architecture) for one in (a, b)]
    except UserError as error:
        return [f"The compiled code of {provider} is not known: {error}"]
    lines = differences(*both)
    who = provider if a.side != b.side else f"{notation.label(b.point)} beside {notation.label(a.point)}"
    place = f"{who} at {notation.extent(b.point)} {notation.words(b.point)}".strip()
    what = "differs:" if lines else "has the same numbers on both sides."
    return [f"The code of {place}, sm_{architecture}, {what}", *(f"  {line}" for line in lines)]


def of_side(root: Path, where: str, point: Point, architecture: str) -> dict[str, Numbers]:
    """Return the numbers of each function that a tree compiles for a point's provider: the point's functions
    for Triton and Numba, the whole library for CUDA.

    Raises UserError with codegen's error message if there is no code.
    """
    problem = problems.make(loading.load(where).kernel.problem, point.problem)
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
    """Return a line for each function whose numbers differ or that only one side has, the largest difference
    in instructions first. The list is empty if both sides are equal."""
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
