"""Run a learner's file against the right answers, and count the memory accesses of its kernel.

    python -m docs.exercises._checking check NAME FILE
    python -m docs.exercises._checking count NAME FILE

Counting compiles for compute capability 9.0, which needs no GPU.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernel_pipeline import tracebacks
from kernel_pipeline.errors import UserError
from kernel_pipeline.loading import as_tuple
from kernel_pipeline.verification import poisoned_memory, unlike
from pipeline.inspection.ptx import parse, width

from . import _catalog, _cuda
from ._catalog import Exercise

TOLERANCE = 1e-4

SHOWN = 6
"""The number of elements that are shown, from the first difference on."""

WRONG = 1
"""The exit code for a wrong answer."""

CAPABILITY = 90


def check(name: str, path: Path) -> str | None:
    """Return a text that says what is wrong with a learner's file, or None if it is right."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    try:
        given, own = _loaded(_catalog.FOLDER / f"{name}.py"), _loaded(path)
        within = getattr(given, "TOLERANCE", TOLERANCE)
        cases = list(given.cases())
        for number, case in enumerate(cases, 1):
            expected = given.expected(*case)
            with poisoned_memory():
                got = own.yours(*_placed(case, device))
            if said := _difference(got, expected, within):
                return f"Case {number} of {len(cases)}, {_described(case)}:\n{said}"
    except Exception as error:  # a learner's file may raise anything
        return tracebacks.described(error, [path.parent])
    return None


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"exercise_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _placed(case: Sequence[Any], device: str) -> list[Any]:
    """Return a case's arguments on a device. A slice stays a view of its whole tensor."""
    return [_moved(x, device) if isinstance(x, torch.Tensor) and device != "cpu" else x for x in case]


def _moved(x: torch.Tensor, device: str) -> torch.Tensor:
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).to(device)
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())


def _described(case: Sequence[Any]) -> str:
    """Return a case's arguments in a line: tensors by shape and dtype."""
    texts = [
        f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)
        for x in case
    ]
    return ", ".join(text if len(text) <= 60 else f"{text[:57]}..." for text in texts)


def _difference(yours: Any, expected: Any, within: float) -> str | None:
    """Return the first difference as a text, or None if there is none."""
    got, wanted = as_tuple(yours), as_tuple(expected)
    if len(got) != len(wanted):
        return f"yours returns {len(got)} values, expected are {len(wanted)}"
    for number, (one, want) in enumerate(zip(got, wanted, strict=True), 1):
        said = _unlike(one, want, within)
        if said:
            return said if len(wanted) == 1 else f"value {number} of {len(wanted)}: {said}"
    return None


def _unlike(one: Any, want: Any, within: float) -> str | None:
    if isinstance(want, torch.Tensor):
        if not isinstance(one, torch.Tensor):
            return f"yours     {type(one).__name__}\nexpected  a tensor"
        if one.shape != want.shape:
            return f"yours     shape {tuple(one.shape)}\nexpected  shape {tuple(want.shape)}"
        return _first_unlike(one.detach().cpu().double().reshape(-1), want.double(), within)
    numbers = isinstance(want, float) and isinstance(one, int | float)
    if math.isclose(one, want, rel_tol=within) if numbers else one == want:
        return None
    texts = unlike(float(one), want).split(", not ") if numbers else (repr(one), repr(want))
    return "yours     {}\nexpected  {}".format(*texts)


def _first_unlike(flat: torch.Tensor, want: torch.Tensor, within: float) -> str | None:
    right = want.reshape(-1)
    wrong = ~torch.isclose(flat, right, rtol=within, atol=within, equal_nan=True)
    if not wrong.any():
        return None
    first = int(wrong.nonzero()[0])
    place = [int(i) for i in torch.unravel_index(torch.tensor(first), want.shape)]
    lines = [f"the first difference is at {place}; {int(wrong.sum())} of {wrong.numel()} elements differ"]
    for title, values in (("yours", flat), ("expected", right)):
        shown = values[first : first + SHOWN].tolist()
        lines.append(f"{title:9}" + "".join(f"{value:>12.6g}" for value in shown))
    return "\n".join(lines)


def count(name: str, path: Path) -> str | None:
    """Describe the loads and stores in the kernel's PTX. Returns None for an exercise without a kernel.
    Raises whatever the learner's file or the compiler raises."""
    solution = _catalog.FOLDER / f"{name}.py"
    compiled = COMPILERS.get(Exercise.read(solution).topic)
    if compiled is None:
        return None
    modules = [_loaded(path), _loaded(solution)]
    own, best = map(accesses, compiled(modules, next(iter(modules[1].cases()))))
    return f"PTX for sm_{CAPABILITY}: {own}.\nThe solution: {'the same' if own == best else best}."


def accesses(ptx: str) -> str:
    """Return the loads and stores of global memory in PTX, with the bytes that a thread moves."""
    statements = [one for function in parse(ptx).values() for one in function.body]
    # An asynchronous copy names its bytes: cp.async.cg.shared.global [ %r1 ], [ %rd1 ], 0x10
    copies = [
        re.match(r"(?:@\S+ )?cp\.async\.\S*global \S.*?\], \[.*?\], (\w+)", one.text) for one in statements
    ]
    moved = {"load": [int(copy[1], 0) for copy in copies if copy], "store": []}
    for one in statements:
        if match := re.match(r"(ld|st)\.(?:\w+\.)*global\b", one.opcode):
            moved["load" if match[1] == "ld" else "store"].append(width(one.opcode))
    return " and ".join(
        f"{len(x)} {noun}{'s' * (len(x) != 1)} of {sum(x)} bytes" for noun, x in moved.items()
    )


def _by_triton(modules: Sequence[ModuleType], case: Sequence[Any]) -> list[str]:
    from kernel_pipeline.execution.offline import compile_for, only_compile

    made: list[Any] = []
    compile_for(CAPABILITY)
    only_compile(made.append)
    return [str(one.asm["ptx"]) for one in _launches(modules, case, made)]


def _by_numba(modules: Sequence[ModuleType], case: Sequence[Any]) -> list[str]:
    from pipeline.inspection.numba_code import NumbaLaunch, only_compile

    made: list[NumbaLaunch] = []
    only_compile(CAPABILITY, made)
    return [one.ptx for one in _launches(modules, case, made)]


def _launches(modules: Sequence[ModuleType], case: Sequence[Any], made: list[Any]) -> list[Any]:
    """Return each module's first launch. A launch appends to ``made``."""
    found = []
    for module in modules:
        made.clear()
        module.yours(*_placed(case, "meta"))
        if not made:
            raise UserError("`yours` launches no kernel.")
        found.append(made[0])
    return found


def _by_nvcc(modules: Sequence[ModuleType], case: Sequence[Any]) -> list[str]:
    del case
    return [_cuda.ptx(module.SOURCE, CAPABILITY) for module in modules]


COMPILERS = {"Triton": _by_triton, "Numba": _by_numba, "CUDA C++": _by_nvcc}
"""By topic, a function that returns the PTX of the kernel that each module launches for a case."""


def main() -> None:
    """Check or count, and print the result."""
    what, name, path = sys.argv[1], sys.argv[2], Path(sys.argv[3]).resolve()
    if what == "check":
        said = check(name, path)
        print(said or "Right.")
        sys.exit(WRONG if said else 0)
    try:
        said = count(name, path)
    except UserError as error:  # no compiler is there
        said = f"Loads and stores are not counted: {error}"
    except Exception as error:  # a compiler may refuse code that an interpreter runs
        print(f"It does not compile for a GPU: {tracebacks.described(error, [path.parent])}")
        sys.exit(WRONG)
    if said:
        print(said)


if __name__ == "__main__":
    main()
