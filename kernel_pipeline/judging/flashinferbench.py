"""flashinfer-bench's format: find the files of a problem, choose its workloads, and read its submissions."""

from __future__ import annotations

import ast
import importlib.util
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from ..contract import ITEM_BYTES
from ..errors import UserError, unknown
from . import definition as reading
from .definition import REFERENCE, WORKLOAD, WORKLOADS, DefinedWorkload, Definition, Solution, Stored
from .formats import Problem, SubmissionFile, Workloads, scaled
from .imported import worded
from .sources import imports_of

DEFINITION = "definition.json"

BUILD = "build"
"""The folder of compiled solutions, beside the kernel's folder."""

LFS = b"version https://git-lfs"
"""The beginning of a file in place of a file that Git LFS has not fetched."""


@dataclass(frozen=True)
class SolutionFile(SubmissionFile):
    """A solution's file. ``solution`` is the solution's name."""

    solution: str = ""


@dataclass(frozen=True, kw_only=True)
class FlashInferProblem(Problem):
    """A definition with the workloads that are judged, by uuid. Paths of stored inputs are relative to
    ``root``."""

    definition: Definition
    workloads: Mapping[str, DefinedWorkload]
    root: Path

    def plan(self, pins: Mapping[str, int], scale: float) -> Workloads:
        """Return the workloads, scaled. The one of middle size stands last: submissions are verified there
        for every distribution of inputs."""
        for name in pins:
            if name not in self.definition.var_axes:
                raise unknown(f"axis of {self.name}", name, self.definition.var_axes)
        made: list[dict[str, Any]] = []
        for uuid, one in self.workloads.items():
            axes = self._axes(one, pins, scale)
            if (broken := self.definition.broken(axes)) is not None:
                raise UserError(
                    f"workload {uuid} breaks the constraint `{broken}` at these sizes: write other sizes."
                )
            made.append({**axes, WORKLOAD: uuid})
        made.sort(key=lambda one: bytes_of(self.definition, one))
        made.append(made.pop(len(made) // 2))
        plain, literals = worded(made)
        fixed = {
            name: f"the constraint `{one}` is not checked"
            for workload in made
            for name, one in self.definition.unchecked(workload).items()
            if name in self.definition.var_axes
        }
        for uuid, one in self.workloads.items():
            fixed |= dict.fromkeys(
                sorted(self._stored_axes(one)), f"an input of workload {uuid} is in a file"
            )
        names = (*fixed, *literals)
        return Workloads(
            tests=plain,
            timed=plain,
            literals=literals,
            resized=tuple(name for name in self.definition.var_axes if name not in names),
            fixed=fixed,
            any_sizes=True,
        )

    def _stored_axes(self, one: DefinedWorkload) -> set[str]:
        """Return the var axes of a workload's stored inputs."""
        stored = [name for name, source in one.inputs.items() if isinstance(source, Stored)]
        axes = {axis for name in stored for axis in self.definition.inputs[name].shape or ()}
        return axes & set(self.definition.var_axes)

    def _axes(self, one: DefinedWorkload, pins: Mapping[str, int], scale: float) -> dict[str, int]:
        """Return the axes of a workload, scaled, except for those of stored inputs."""
        fixed = self._stored_axes(one)
        if clash := sorted(fixed & pins.keys()):
            raise UserError(f"{clash[0]} can't be changed: an input of workload {one.uuid} is in a file.")
        return {
            name: pins.get(name, size if name in fixed else scaled(size, scale))
            for name, size in one.axes.items()
        }

    def files(self) -> dict[Path, str]:
        """Return the definition's file."""
        return {self.path: DEFINITION}

    def texts(self) -> dict[str, str]:
        """Return the reference, and the workloads."""
        found = (_placed(one, self.root) for one in self.workloads.values())
        lines = (msgspec.json.encode(one).decode() for one in found)
        return {REFERENCE: self.definition.reference, WORKLOADS: "\n".join(lines)}

    def submission(self, path: Path) -> SolutionFile:
        """Read a solution. Its sources are written to a folder of its own."""
        found = reading.solution(path, self.definition)
        trees = [ast.parse(one.content) for one in found.sources if one.path.endswith(".py")]
        return SolutionFile(
            path,
            found.spec.entry_point.partition("::")[2],
            is_triton=any("triton" in imports_of(tree) for tree in trees),
            needs_gpu="cpu" not in [one.lower() for one in found.spec.target_hardware],
            texts={one.path: one.content for one in found.sources},
            lacks=lacking(found),
            solution=found.name,
        )


def problem(path: Path, workloads: Path | None, most: int | None) -> FlashInferProblem:
    """Read a definition and at most ``most`` of its workloads, from a file or from the file that the layout
    of folders gives. Raises UserError if a file is not in the format or there is none."""
    found = reading.definition(path)
    possible = [workloads] if workloads is not None else [*places(path)]
    place = next((one for one in possible if one.is_file()), None)
    if place is None:
        looked = ", ".join(map(str, possible))
        raise UserError(f"there are no workloads of {found.name} in {looked}: write workloads=FILE.")
    every = sorted(reading.workloads(place, found).values(), key=lambda one: bytes_of(found, one.axes))
    count = len(every) if most is None else min(most, len(every))
    # Spread from the smallest to the largest.
    chosen = [every[(2 * number + 1) * len(every) // (2 * count)] for number in range(count)]
    root = _root(place)
    for one in chosen:
        _require_files(one, root, place)
    return FlashInferProblem(
        name=found.name,
        path=path,
        code="flashinferbench_code.FlashInferCode",
        own=SubmissionFile(path, "run"),
        definition=found,
        workloads={one.uuid: one for one in chosen},
        root=root,
    )


def bytes_of(of: Definition, axes: Mapping[str, int]) -> int:
    """Return the bytes of all inputs and outputs."""
    tensors = (*of.inputs.values(), *of.outputs.values())
    return sum(prod(of.shape(one, axes)) * ITEM_BYTES.get(one.dtype, 1) for one in tensors)


def lacking(solution: Solution) -> str | None:
    """Return the package and the compilers that a solution lacks here, as a clause, or None."""
    spec, packages, programs = solution.spec, list[str](), list[str]()
    if spec.language in ("triton", "tilelang"):
        packages = [str(spec.language)]
    elif spec.language in ("cpp", "cuda"):
        packages = ["torch"] if spec.binding == "torch" else ["tvm_ffi"]
        programs = ["ninja", "g++", *(["nvcc"] if spec.language == "cuda" else [])]
    missing = [one for one in packages if importlib.util.find_spec(one) is None]
    missing += [one for one in programs if shutil.which(one) is None]
    named = [{"tvm_ffi": "the package apache-tvm-ffi"}.get(one, one) for one in missing]
    return f"it needs {' and '.join(named)}, which this machine lacks" if named else None


def places(path: Path) -> Iterator[Path]:
    """Yield the places of a definition's workloads: in the folder ``workloads`` beside the folder
    ``definitions``, or beside the definition."""
    parts = path.absolute().parts
    if "definitions" in parts:
        place = len(parts) - 1 - parts[::-1].index("definitions")
        yield Path(*parts[:place], "workloads", *parts[place + 1 :]).with_suffix(".jsonl")
    yield path.with_suffix(".jsonl")
    yield path.with_name(WORKLOADS)


def _root(workloads: Path) -> Path:
    """Return the folder to which paths of stored inputs are relative."""
    parents = workloads.absolute().parents
    return next((one.parent for one in parents if one.name == "workloads"), parents[0])


def _placed(one: DefinedWorkload, root: Path) -> DefinedWorkload:
    """Return a workload with the absolute paths of its stored inputs."""
    inputs = {
        name: source.replace(path=str(root / source.path)) if isinstance(source, Stored) else source
        for name, source in one.inputs.items()
    }
    return one.replace(inputs=inputs)


def _require_files(one: DefinedWorkload, root: Path, place: Path) -> None:
    """Raise UserError if the file of a stored input is not there or can't be read here."""
    for name, source in one.inputs.items():
        if isinstance(source, Stored):
            where, file = f"{place}: inputs.{name} of workload {one.uuid}", root / source.path
            if not file.is_file():
                raise UserError(f"{where}: there is no file {file}.")
            with file.open("rb") as opened:
                if opened.read(len(LFS)) == LFS:
                    raise UserError(f"{where}: {file} is a pointer of Git LFS: write `git lfs pull` there.")
            if importlib.util.find_spec("safetensors") is None:
                raise UserError(f"{where} is in a file in safetensors' format: pip install safetensors.")
