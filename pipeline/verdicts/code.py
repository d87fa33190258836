"""Compare the compiled code of both sides of a comparison: the functions whose numbers differ.

``python -m pipeline.codegen`` disassembles each side's code in that side's tree. It needs no GPU, so it waits
for no lock. Two configurations of one provider in one tree have different code, except in CUDA, where they
share a library.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from math import log
from pathlib import Path
from typing import Self

from kernel_pipeline import loading, problems
from kernel_pipeline.contract import Kernel
from kernel_pipeline.declared import shown
from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.fork_server import Root
from kernel_pipeline.machine.device import cpu_threads
from kernel_pipeline.records.point import Point

from .. import PACKAGE
from ..execution.side_process import SideProcess
from ..points import notation
from ..store.evidence import CodeRow, read_lines
from .rounds import Candidate, Match, Rounds

LANGUAGES = ("triton", "gluon", "numba", "cuda")
"""The languages whose compiled code has numbers."""

MOST = 8
"""The maximum number of listed functions; the others are counted, because a library of templates has
hundreds."""

OF_FUNCTION = ("registers", "shared", "instructions")
"""The numbers of a function that only one side has."""

Numbers = Mapping[str, int]
"""The registers, bytes of shared memory and spilled bytes of a function, and its instructions by kind."""


def most_changed(measured_rounds: Rounds, kernel: Kernel, takes_all: bool = False) -> dict[str, Match]:
    """Return the match with the largest change for each provider that has code with numbers and became faster
    or slower; with ``takes_all`` for each provider that has such code."""
    estimates, verdicts = measured_rounds.estimates(), measured_rounds.verdicts()
    found: dict[str, Match] = {}
    for match in measured_rounds.matches:
        a, b = match.candidates
        is_decided = verdicts[match, b] in ("faster", "slower")
        if not _have_code_of_their_own(a, b, kernel) or not (takes_all or is_decided):
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


def explained(matches: Sequence[Match], architecture: str) -> list[list[str]]:
    """Return, for each match, lines on the differences in the code of its sides, or on why they are not
    known. As many processes compile at the same time as there are cores."""
    sides = [(one.side.root, one.side.where, one.point) for match in matches for one in match.candidates]
    with ExitStack() as stack:
        begun: list[Compiling] = []
        for place, side in enumerate(sides):
            if place >= cpu_threads():
                begun[place - cpu_threads()].process.result()
            begun.append(stack.enter_context(Compiling(*side, architecture)))
        pairs = zip(begun[::2], begun[1::2], strict=True)
        return [_explained(match, *of) for match, of in zip(matches, pairs, strict=True)]


def _explained(match: Match, of_a: Compiling, of_b: Compiling) -> list[str]:
    a, b = match.candidates
    provider = f"{b.point.kernel} {b.point.provider}"
    try:
        lines = differences(of_a.numbers(), of_b.numbers())
    except UserError as error:
        return [f"The compiled code of {provider} is not known: {error}"]
    who = provider if a.side != b.side else f"{notation.label(b.point)} beside {notation.label(a.point)}"
    place = f"{who} at {notation.extent(b.point)} {notation.words(b.point)}".strip()
    what = "differs:" if lines else "has the same numbers on both sides."
    return [f"The code of {place}, sm_{of_a.architecture}, {what}", *(f"  {line}" for line in lines)]


class Compiling:
    """A process that compiles a point's provider in a tree, and disassembles the code: the point's functions
    for Triton and Numba, the whole library for CUDA. A context manager, whose exit ends the process."""

    def __init__(self, root: Path | Root, where: str, point: Point, architecture: str) -> None:
        problem = problems.make(loading.load(where).kernel.problem, point.problem)
        pins = {**problems.values_of(problem), **point.parameters}
        self.provider = point.provider
        self.architecture = architecture
        self._folder = tempfile.TemporaryDirectory()
        folder = self._folder.name
        self.process = SideProcess(
            root,
            f"{PACKAGE}.codegen",
            *(f"kernel={where}", f"provider={point.provider}", f"architectures=[{architecture}]"),
            *("device=cpu", f"output={folder}", f"artifacts={folder}"),
            *(f"{name}={shown(value)}" for name, value in pins.items()),
        )

    def numbers(self) -> dict[str, Numbers]:
        """Return the numbers of each function. Raises UserError with codegen's error message if there is no
        code."""
        self.process.output("codegen says nothing")
        rows = [
            row
            for path in Path(self._folder.name).glob("codegen/*/*.jsonl")
            for row in read_lines(path, CodeRow, lambda sentence: None)
        ]
        found: dict[str, Numbers] = {
            row.function: {
                "registers": row.registers or 0,
                "shared": row.shared or 0,
                "spilled": row.mix.spilled_bytes,
                **row.mix.to_dict(),
            }
            for row in rows
            if row.mix is not None
        }
        if not found:
            raise UserError(next((row.error for row in rows if row.error), f"{self.provider} has no code."))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__()
        self._folder.cleanup()


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
        return f"only {side} has it, {', '.join(f'{_word(name)} {numbers[name]}' for name in OF_FUNCTION)}"
    return ", ".join(f"{_word(name)} {a[name]} -> {b[name]}" for name in a if a[name] != b[name])


def _word(name: str) -> str:
    return name.replace("_", " ")


def _instructions(numbers: Numbers | None) -> int:
    return 0 if numbers is None else numbers["instructions"]
