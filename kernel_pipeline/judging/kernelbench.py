"""KernelBench's format: read the files of a problem and of its submissions as data.

A problem is a file in KernelBench's format (Ouyang et al., 2025): a module ``Model``, and the functions
``get_inputs`` and ``get_init_inputs``. A submission is a file with a module ``ModelNew``.
"""

from __future__ import annotations

import ast
import keyword
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError, unknown
from ..records.base import MOST_VALUES, Values
from .formats import SMALL, Problem, SubmissionFile, Workloads, scaled
from .imported import DISTRIBUTION
from .sources import parsed, separated, submission

MODULE, NEW = "Model", "ModelNew"
FUNCTIONS = ("get_inputs", "get_init_inputs")

PROBLEM = "problem.py"
"""The problem's file in the kernel's folder."""

MOST_SIZES = MOST_VALUES - 1

OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}

LARGEST = 2**40
"""A larger integer is not taken for a size."""


@dataclass(frozen=True, kw_only=True)
class KernelBenchProblem(Problem):
    """A problem's file with its sizes: the integers that the module assigns to names, by name."""

    sizes: dict[str, int]

    def plan(self, pins: Mapping[str, int], scale: float) -> Workloads:
        """Return the file's sizes, scaled, as the only workload."""
        for name in pins:
            if name not in self.sizes:
                raise unknown(f"size of {self.path.name}", name, self.sizes)
        made = Values({name: pins.get(name, scaled(size, scale)) for name, size in self.sizes.items()})
        resized = tuple(name for name, size in made.items() if type(size) is int and size >= SMALL)
        fixed = {} if resized else {"the file": f"it names no size of {SMALL} or more"}
        return Workloads(tests=(made,), timed=(made,), resized=resized, fixed=fixed)

    def files(self) -> dict[Path, str]:
        """Return the problem's file."""
        return {self.path: PROBLEM}

    def submission(self, path: Path) -> SubmissionFile:
        """Read a submission's file, which has a ``ModelNew``."""
        tree = parsed(path)
        _require(tree, path, NEW)
        return submission(path, NEW, tree)


def problem(path: Path) -> KernelBenchProblem:
    """Read a problem's file. Raises UserError, with file and line, if it is not in KernelBench's format."""
    tree = parsed(path)
    for name in FUNCTIONS:
        if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body):
            raise UserError(f"{path}:1: there is no function {name}: a problem's file has {_format()}.")
    _require(tree, path, MODULE)
    return KernelBenchProblem(
        name=path.stem,
        path=path,
        code="kernelbench_code.KernelBenchCode",
        own=SubmissionFile(path, MODULE),
        has_own_check=True,
        sizes=sizes(tree),
    )


def sizes(tree: ast.Module) -> dict[str, int]:
    """Return the positive integers that a module assigns to names once, as ``dim = 4096`` or ``n = 2 * 512``.
    A name that is computed from others is not a size."""
    written = list(_assignments(tree))
    count = Counter(name for name, _ in written)
    found = {}
    for name, value in written:
        number = _integer(value)
        is_name = not keyword.iskeyword(name) and name != DISTRIBUTION
        if number is not None and 0 < number < LARGEST and count[name] == 1 and is_name:
            found[name] = number
    return dict(list(found.items())[:MOST_SIZES])


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in separated(tree.body):
        if isinstance(node, ast.Assign):
            first = next((target for target in node.targets if isinstance(target, ast.Name)), None)
            yield from ((first.id, node.value),) if first is not None else ()
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _integer(node: ast.expr) -> int | None:
    """Return the value of an expression of whole numbers alone, or None."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int and abs(node.value) < LARGEST else None
    if isinstance(node, ast.BinOp) and (apply := OPERATORS.get(type(node.op))) is not None:
        left, right = _integer(node.left), _integer(node.right)
        if left is None or right is None or (apply is operator.pow and not 0 <= right <= 40):
            return None
        made = apply(left, right) if right or apply is not operator.floordiv else None
        return made if made is not None and abs(made) < LARGEST else None
    return None


def _require(tree: ast.Module, path: Path, name: str) -> None:
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        what = "a problem's file" if name == MODULE else "a submission"
        raise UserError(f"{path}:1: there is no class {name}: {what} has {_format(name)}.")


def _format(name: str = MODULE) -> str:
    functions = " and the functions get_inputs and get_init_inputs" if name == MODULE else ""
    return f"a class {name}(torch.nn.Module){functions}"
