"""Compile every Triton provider for several GPUs on a host without one, and list the binaries.

Run in a process of its own, without the interpreter. The providers get tensors without data. Prints a JSON
line for each binary.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_pipeline.contract import Gpu
from kernel_pipeline.declared import Value, shown
from kernel_pipeline.execution.offline import compile_for, only_compile
from tests.kernels.kernel_cases import EVERY, META, Case, MatrixCase, problem_of, words_of

ARCHITECTURES = {
    80: Gpu((8, 0), 108, 163 * 1024, 40 * 2**20),
    90: Gpu((9, 0), 132, 227 * 1024, 50 * 2**20),
    100: Gpu((10, 0), 148, 227 * 1024, 126 * 2**20),
}
"""Compute capabilities, and an A100, an H200 and a B200."""

# Rows of one element, of a number that is no multiple of anything, and of one that loads are vectorized over.
SIZES = (1, 37, 4096)
FEW_ROWS = 64

LAUNCHES = ({"block_size": 128, "num_warps": 2}, {"block_size": 4096, "num_warps": 8})
"""Of small problems and of the largest: two launches that differ in every parameter, for the providers that
have these."""

TRITON = [case for case in EVERY if case.provider.language in ("triton", "gluon")]


def label(words: dict[str, Value]) -> str:
    """A problem's words joined."""
    return "-".join(map(shown, words.values()))


def all_words(case: Case) -> list[dict[str, Any]]:
    """The words that the provider takes at any size. Of the two halves float16 is left out: only names of
    types differ. Of the layouts, tt has both matrices the other way round."""
    first, *others = [dict(one.values[0]) for one in words_of(case.loaded)]
    left_out = ("float16", "nt", "tn")
    every = [first, *(one for one in others if not any(word in left_out for word in one.values()))]
    return [one for one in every if any(is_taken(case, size, one) for size in SIZES)]


def is_taken(case: Case, size: int, words: dict[str, Any]) -> bool:
    """Whether any configuration of a provider fits the problem on an H200."""
    try:
        case.configuration(problem(case, size, words), on=ARCHITECTURES[90])
    except pytest.skip.Exception:
        return False
    return True


def problem(case: Case, size: int, words: dict[str, Value]) -> Any:
    """The problem of a size; matrices have few rows, for which kernels are compiled for their columns."""
    few: dict[str, Value] = {"rows": FEW_ROWS} if isinstance(case, MatrixCase) else {}
    return problem_of(case.loaded, size, **words, **few)


def wanted(case: Case) -> Iterator[tuple[int, dict[str, Value], int, dict[str, Value]]]:
    """What to compile: every word for sm_90, the first words for the others; every size, each with a launch,
    for one of each.

    They don't interact. Yields the architecture, the words, the size and the configuration.
    """
    words = all_words(case)
    for architecture, gpu in ARCHITECTURES.items():
        if case.provider.runs_on(gpu) is not None:
            continue
        for one in words if architecture == 90 else words[:1]:
            every = architecture == 90 and one == words[1 % len(words)]
            for size in SIZES if every else SIZES[-1:]:
                variables = case.provider.variables()
                preferred = {
                    name: value
                    for name, value in LAUNCHES[size == SIZES[-1]].items()
                    if name in variables and (name == "block_size" or value in (variables[name].values or ()))
                }
                asked = problem(case, size, one)
                try:
                    yield architecture, one, size, case.configuration(asked, preferred=preferred, on=gpu)
                except pytest.skip.Exception:
                    continue  # nothing fits


def compile_all(case: Case, binaries: list[Any]) -> None:
    """Print a line for each binary of a provider."""
    for architecture, words, size, parameters in wanted(case):
        compile_for(architecture)
        asked = problem(case, size, words)
        binaries.clear()
        case.call(asked, case.in_form.inputs(asked, META, 0), parameters)
        for binary in binaries:
            row = {
                "kernel": case.loaded.name,
                "provider": case.provider.name,
                "architecture": architecture,
                "words": label(words),
                "size": size,
                "parameters": parameters,
                "num_warps": binary.metadata.num_warps,
                "num_stages": binary.metadata.num_stages,
                "target": binary.metadata.target.arch,
                "constants": sorted(
                    value for value in binary.src.constants.values() if isinstance(value, int)
                ),
                "vector_loads": len(re.findall(r"ld\.global\S*\.v[248]\.", binary.asm["ptx"])),
                "cubin_bytes": len(binary.asm["cubin"]),
            }
            print(json.dumps(row), flush=True)


def main() -> None:
    """Compile everything."""
    binaries: list[Any] = []
    only_compile(binaries.append)
    for case in TRITON:
        compile_all(case, binaries)


if __name__ == "__main__":
    main()
