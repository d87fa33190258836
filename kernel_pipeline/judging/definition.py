"""Read definitions, workloads and solutions in flashinfer-bench's format as data, without running their code.

A definition is a JSON file with a reference in PyTorch; its workloads are lines of a JSON Lines file, and a
solution is a JSON file with the texts of its sources. The format is FlashInfer Trace
(https://bench.flashinfer.ai/docs/flashinfer-trace).
"""

from __future__ import annotations

import ast
import json
import keyword
import operator
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, convert

from ..errors import UserError
from ..records.base import MOST_VALUES, MOST_WORD, Record, ValidationError
from ..records.fields import Count, is_printable
from .imported import DISTRIBUTION
from .sources import text_of

WORKLOAD = "workload"
"""The name of the dimension that gives the workload of a problem, by its ``uuid``."""

REFERENCE, WORKLOADS = "run.py", "workloads.jsonl"
"""The files of a definition's reference and of its workloads in the kernel's folder."""

FloatDtype = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1"]
Dtype = FloatDtype | Literal["int64", "int32", "int16", "int8", "bool"]
Some = Annotated[str, Meta(min_length=1)]
T = TypeVar("T")


class Const(Record, tag_field="type", tag="const"):
    """An axis of one fixed size."""

    value: Count
    description: str | None = None


class Var(Record, tag_field="type", tag="var"):
    """An axis whose size a workload gives."""

    description: str | None = None


class Tensor(Record):
    """An input or output: the names of its axes, and its dtype. A ``shape`` of None means a Python number."""

    shape: tuple[Some, ...] | None
    dtype: Dtype
    description: str | None = None
    optional: bool = False


class Definition(Record):
    """A problem: its axes, inputs and outputs, and the text of a reference with a function ``run``."""

    name: Some
    op_type: Some
    axes: dict[Some, Const | Var]
    inputs: dict[Some, Tensor]
    outputs: dict[Some, Tensor]
    reference: Some
    tags: tuple[Some, ...] | None = None
    description: str | None = None
    constraints: tuple[Some, ...] | None = None

    @property
    def var_axes(self) -> tuple[str, ...]:
        """The names of the axes whose sizes workloads give."""
        return tuple(name for name, axis in self.axes.items() if isinstance(axis, Var))

    def sizes(self, given: Mapping[str, int]) -> dict[str, int]:
        """Return the size of each axis; ``given`` has the sizes of the var axes."""
        return {
            name: axis.value if isinstance(axis, Const) else given[name] for name, axis in self.axes.items()
        }

    def shape(self, tensor: Tensor, given: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of an input or output; a number has no dimensions."""
        sizes = self.sizes(given)
        return tuple(sizes[name] for name in tensor.shape or ())

    def broken(self, given: Mapping[str, int]) -> str | None:
        """Return the first constraint that sizes break, or None. Constraints that name tensors are not
        evaluated."""
        sizes = self.sizes(given)
        return next((one for one in self.constraints or () if _value(one, sizes) is False), None)

    def unchecked(self, given: Mapping[str, int]) -> dict[str, str]:
        """Return the axes that constraints name which can't be evaluated, each with such a constraint."""
        sizes = self.sizes(given)
        unknown = [one for one in self.constraints or () if _value(one, sizes) is None]
        named = ((node, one) for one in unknown for node in ast.walk(ast.parse(one, mode="eval")))
        return {node.id: one for node, one in named if isinstance(node, ast.Name) and node.id in self.axes}


class Random(Record, tag_field="type", tag="random"):
    """An input that is drawn from a seed."""


class Scalar(Record, tag_field="type", tag="scalar"):
    """An input that is this number."""

    value: bool | int | float


class Stored(Record, tag_field="type", tag="safetensors"):
    """An input that is a tensor of a file in safetensors' format."""

    path: Some
    tensor_key: Some


class DefinedWorkload(Record):
    """The sizes of the var axes, and the source of each input. An input without a source is random."""

    uuid: Some
    axes: dict[Some, Count]
    inputs: dict[Some, Random | Scalar | Stored]


class Line(Record):
    """A line of a file of workloads, which is a trace without a solution."""

    definition: Some
    workload: DefinedWorkload
    solution: str | None = None
    evaluation: Any = None


class Source(Record):
    """The text of a solution's file, and its relative path."""

    path: Some
    content: Some


class Spec(Record):
    """How a solution is built and called. ``entry_point`` is ``FILE::FUNCTION``."""

    language: Literal["python", "triton", "cpp", "cuda", "tilelang"]
    target_hardware: Annotated[tuple[str, ...], Meta(min_length=1)]
    entry_point: Annotated[str, Meta(pattern=r"\A[^:]+::[^:]+\Z")]
    dependencies: tuple[Some, ...] | None = None
    destination_passing_style: bool = True
    binding: Literal["tvm-ffi", "torch"] | None = None


class Solution(Record):
    """A submission to a definition."""

    name: Some
    definition: Some
    author: Some
    spec: Spec
    sources: Annotated[tuple[Source, ...], Meta(min_length=1)]
    description: str | None = None


def definition(path: Path) -> Definition:
    """Read a definition. Raises UserError, with the field, if it is not in the format."""
    data = _object(text_of(path), path)
    for field, kind in (("axes", Const | Var), ("inputs", Tensor), ("outputs", Tensor)):
        _each(data, field, kind, path)
    found = _as(Definition, data, path)
    for name in found.axes:
        if not name.isidentifier() or keyword.iskeyword(name) or name in (DISTRIBUTION, WORKLOAD):
            raise UserError(f"{path}: axes.{name}: rename this axis: a name is letters, digits and _.")
    if len(found.var_axes) > MOST_VALUES - 2:
        raise UserError(f"{path}: axes: at most {MOST_VALUES - 2} axes can be of type var.")
    for name, tensor in (*found.inputs.items(), *found.outputs.items()):
        for axis in tensor.shape or ():
            if axis not in found.axes:
                raise UserError(f"{path}: the shape of {name} has an unknown axis, {axis!r}.")
    if both := found.inputs.keys() & found.outputs.keys():
        raise UserError(f"{path}: {', '.join(sorted(both))} can't be both an input and an output.")
    if not found.outputs or not any(one.shape is not None for one in found.inputs.values()):
        raise UserError(f"{path}: a definition has at least one output, and one input that is a tensor.")
    tree = _parsed(found.reference, "exec", f"{path}: reference")
    if not any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body):
        raise UserError(f"{path}: reference has no function `run` at its top level.")
    for one in found.constraints or ():
        _parsed(one, "eval", f"{path}: constraints")
    return found


def workloads(path: Path, of: Definition) -> dict[str, DefinedWorkload]:
    """Read the workloads of a definition, by uuid. Raises UserError, with the line, if one is not in the
    format or does not fit the definition."""
    found: dict[str, DefinedWorkload] = {}
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            data = _object(line, where)
            if isinstance(data.get("workload"), dict):
                _each(data["workload"], "inputs", Random | Scalar | Stored, where, "workload.")
            one = _as(Line, data, where)
            if one.definition != of.name:
                raise UserError(f"{where}: the workload is of {one.definition}, not of {of.name}.")
            if (why := unfit(of, one.workload)) or one.workload.uuid in found:
                raise UserError(f"{where}: {why or 'another line has this uuid'}.")
            found[one.workload.uuid] = one.workload
    if not found:
        raise UserError(f"{path} has no workloads.")
    return found


def unfit(of: Definition, one: DefinedWorkload) -> str | None:
    """Return the reason why a workload does not fit its definition, as a clause, or None."""
    if len(one.uuid) > MOST_WORD or not is_printable(one.uuid):
        return f"the uuid has more than {MOST_WORD} characters, or control characters"
    if one.axes.keys() != set(of.var_axes):
        return f"axes has {', '.join(one.axes) or 'nothing'}, and not {', '.join(of.var_axes) or 'nothing'}"
    if unknown := [name for name in one.inputs if name not in of.inputs]:
        return f"{unknown[0]} is not an input of {of.name}"
    for name, source in one.inputs.items():
        if isinstance(source, Stored) and of.inputs[name].shape is None:
            return f"{name} is a number, and a file holds tensors"
        if isinstance(source, Scalar) and of.inputs[name].shape is not None:
            return f"{name} is a tensor, not a number"
    broken = of.broken(one.axes)
    return None if broken is None else f"the axes break the constraint `{broken}`"


def solution(path: Path, of: Definition) -> Solution:
    """Read a solution of a definition. Raises UserError, with the field, if it is not in the format."""
    found = _as(Solution, _object(text_of(path), path), path)
    if found.definition != of.name:
        raise UserError(f"{path}: the solution is of {found.definition}, not of {of.name}.")
    names = [source.path for source in found.sources]
    for name in names:
        parts = PurePosixPath(name).parts
        if PurePosixPath(name).is_absolute() or ".." in parts or not name.isprintable() or "\\" in name:
            raise UserError(f"{path}: sources: {name!r} is not a relative path inside the solution's folder.")
        if names.count(name) > 1:
            raise UserError(f"{path}: sources: two files have the path {name}.")
    file, _, function = found.spec.entry_point.partition("::")
    if file not in names:
        raise UserError(f"{path}: spec.entry_point: {file} is not one of the sources.")
    if not function.isidentifier():
        raise UserError(f"{path}: spec.entry_point: {function!r} is not the name of a function.")
    for source in found.sources:
        if source.path.endswith(".py"):
            _parsed(source.content, "exec", f"{path}: sources: {source.path}")
    return found


def _object(text: str, where: Path | str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}" if isinstance(where, Path) else where
        raise UserError(f"{place}: it is not JSON: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: it can't be read as JSON: {error}.") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: it is not a JSON object.")
    return found


def _each(data: Mapping[str, Any], field: str, kind: Any, where: Path | str, prefix: str = "") -> None:
    """Check each value of a field, so that an error can name it."""
    values = data.get(field)
    for name, value in values.items() if isinstance(values, dict) else ():
        _as(kind, value, where, f"{prefix}{field}.{name}")


def _as(kind: type[T], data: Any, where: Path | str, field: str = "") -> T:
    try:
        return convert(data, kind)
    except ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        place = (field + place.rstrip("`")).lstrip(".")
        raise UserError(f"{where}: {f'{place}: ' if place else ''}{said[0].lower()}{said[1:]}.") from error


def _parsed(text: str, mode: Literal["exec", "eval"], where: str) -> Any:
    try:
        return ast.parse(text, mode=mode)
    except SyntaxError as error:
        line = f", line {error.lineno}" if mode == "exec" else ""
        raise UserError(f"{where}{line}: {error.msg}: {(error.text or text).strip()}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} can't be parsed as Python: {error}.") from error


BINARY: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod},
    **{ast.FloorDiv: operator.floordiv, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt},
    **{ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
}


def _value(constraint: str, sizes: Mapping[str, int]) -> Any:
    """Return the value of a constraint over sizes, or None if it has anything but whole numbers, names of
    axes, arithmetic, comparisons, ``and`` and ``or``."""

    def value(node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return sizes[node.id]
        if isinstance(node, ast.BinOp):
            return BINARY[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Compare):
            return all(_compared(node, [value(one) for one in (node.left, *node.comparators)]))
        if isinstance(node, ast.BoolOp):
            values = [value(one) for one in node.values]
            return all(values) if isinstance(node.op, ast.And) else any(values)
        raise KeyError(type(node))

    try:
        return value(ast.parse(constraint, mode="eval").body)
    except (KeyError, ZeroDivisionError):
        return None


def _compared(node: ast.Compare, values: list[Any]) -> Iterator[bool]:
    pairs = zip(node.ops, values, values[1:], strict=False)
    return (bool(BINARY[type(op)](left, right)) for op, left, right in pairs)
