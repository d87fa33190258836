"""Read from a Triton function's source how it is launched, without importing it.

Only the common form is understood: each program processes the next block of elements, reads some pointers and
writes others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernel_pipeline.contract import Value
from kernel_pipeline.errors import UserError, unknown
from pipeline import ROOT
from pipeline.points.syntax import bound, scope

Role = Literal["input", "output", "elements", "block", "choice", "number"]
"""An argument's role: a pointer that is read or written, the number of elements, the elements of a program,
another ``tl.constexpr``, or another number."""

BLOCK = 1024
"""Elements of a program for a function without a default."""


class _UnclearError(Exception):
    """A property that the source does not show, as a clause."""


@dataclass(frozen=True)
class Argument:
    """An argument of a Triton function; a ``choice`` and a ``block`` have a default."""

    name: str
    role: Role
    default: Value | None = None


@dataclass(frozen=True)
class TritonFunction:
    """A Triton function in the common form. ``text`` is its source with the definitions and imports that it
    needs."""

    name: str
    arguments: tuple[Argument, ...]
    text: str

    def with_role(self, *roles: Role) -> list[Argument]:
        """The arguments with one of these roles, in their order."""
        return [argument for argument in self.arguments if argument.role in roles]


def read(file: Path, function: str) -> TritonFunction:
    """Read a function of a file. Raises UserError for an unreadable file or function."""
    try:
        text = file.read_text()
        tree = ast.parse(text)
    except OSError as error:
        raise UserError(f"can't read {file}: {error.strerror}.") from error
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else f": {error}"
        raise UserError(f"{file} is not Python{line}.") from error
    jitted = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and _is_jitted(node)}
    if function not in jitted:
        raise unknown(f"@triton.jit function of {file}", function, jitted)
    try:
        arguments = tuple(_Launch(jitted[function]).arguments())
        statements = _needed(tree, jitted[function], file)
    except _UnclearError as unclear:
        raise UserError(
            f"from={file}:{function}: {unclear}. Leave out from= and write into triton.py how it is launched."
        ) from unclear
    return TritonFunction(function, arguments, _source(text, statements))


class _Launch:
    """The reader of one function's launch."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.nodes = [node for statement in function.body for node in ast.walk(statement)]
        others = [ast.unparse(each) for each in function.decorator_list if not _names(each, "jit")]
        if others:
            raise _UnclearError(
                f"it is decorated with @{others[0].partition('(')[0]}, which launches it in its own way"
            )
        given = function.args
        if given.vararg or given.kwarg or given.kwonlyargs:
            raise _UnclearError("it takes arguments that have no place of their own")
        named = [*given.posonlyargs, *given.args]
        defaults = [None] * (len(named) - len(given.defaults)) + given.defaults
        self.defaults = dict(zip((one.arg for one in named), defaults, strict=True))
        self.annotations = {one.arg: ast.unparse(one.annotation) if one.annotation else "" for one in named}
        self.values: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.values.setdefault(node.targets[0].id, []).append(node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                self.values.setdefault(node.target.id, []).append(node.value)

    def arguments(self) -> Iterator[Argument]:
        """Each argument with its role. Raises _UnclearError."""
        if any(isinstance(node, ast.For | ast.While) for node in self.nodes):
            raise _UnclearError("it loops, so that its source does not tell how many elements a program does")
        constants = [name for name in self.annotations if "constexpr" in self.annotations[name]]
        block = self._block(constants)
        read, written = self._pointers("load"), self._pointers("store")
        if both := read & written:
            raise _UnclearError(f"it writes over {', '.join(sorted(both))}, which it reads")
        if not (read and written):
            raise _UnclearError(f"can't tell what it {'writes' if read else 'reads'}")
        count = self._count([name for name in self.annotations if name not in read | written | {block}])
        for name in self.annotations:
            if name in read:
                yield Argument(name, "input")
            elif name in written:
                yield Argument(name, "output")
            elif name == count:
                yield Argument(name, "elements")
            elif name == block:
                yield Argument(name, "block", self._default(name, BLOCK))
            elif name in constants:
                yield Argument(name, "choice", self._default(name, None))
            else:
                yield self._number(name)

    def _block(self, constants: list[str]) -> str:
        """The constant that says how many elements a program does."""
        axes = list(self._calls("program_id"))
        if len({ast.dump(axis) for axis in axes}) != 1 or _first(axes[0]) != 0:
            raise _UnclearError("its programs are not numbered along one dimension, program_id(0)")
        if list(self._calls("num_programs")):
            raise _UnclearError("what a program does depends on how many there are")
        ranges = {
            name for call in self._calls("arange") for name in map(_name, call.args) if name in constants
        }
        if len(ranges) != 1:
            raise _UnclearError("can't tell which tl.constexpr is the number of elements that a program does")
        (block,) = ranges
        for node in self.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                sides = (node.left, node.right)
                if block in map(_name, sides) and any(self._reaches(side, "program_id") for side in sides):
                    return block
        raise _UnclearError(f"no program begins at program_id(0) * {block}")

    def _pointers(self, call: str) -> set[str]:
        """The arguments at which the addresses of all such calls begin."""
        if atomic := [name for name in map(_called, self.nodes) if name.startswith("atomic_")]:
            raise _UnclearError(f"it writes by tl.{atomic[0]}, into memory that has to hold something before")
        found = set()
        for node in self._calls(call):
            address = node.args[0] if node.args else node.keywords[0].value
            bases = list(self._bases(address, frozenset()))
            if not bases or not self._reaches(address, "arange"):
                raise _UnclearError(f"can't tell which elements `{ast.unparse(node)}` is about")
            likely = [name for name in bases if name.endswith("ptr") or "tensor" in self.annotations[name]]
            found.add((likely or bases)[0])
        return found

    def _bases(self, address: ast.expr, seen: frozenset[str]) -> Iterator[str]:
        """The arguments at which an address may begin, the likeliest first."""
        match address:
            case ast.Name(id=name) if name in self.annotations:
                yield name
            case ast.Name(id=name) if name not in seen:
                for value in self.values.get(name, []):
                    yield from self._bases(value, seen | {name})
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                yield from self._bases(left, seen)
                yield from self._bases(right, seen)

    def _count(self, names: list[str]) -> str:
        """The argument that elements are compared with."""
        compared = {
            name
            for node in self.nodes
            if isinstance(node, ast.Compare)
            for name in map(_name, (node.left, *node.comparators))
            if name in names and self.defaults[name] is None
        }
        if len(compared) != 1:
            raise _UnclearError(
                "can't tell which argument is the number of elements: one that a mask compares with"
            )
        return compared.pop()

    def _default(self, name: str, otherwise: Value | None) -> Value:
        default = self.defaults[name]
        value = default.value if isinstance(default, ast.Constant) else otherwise
        if not isinstance(value, int | str):
            raise _UnclearError(f"can't tell what {name} may be: it has no default")
        return value

    def _number(self, name: str) -> Argument:
        """An argument that is neither pointer nor constant. Raises _UnclearError unless it can be a whole
        number of a problem."""
        if "stride" in name or name.endswith("ptr") or "tensor" in self.annotations[name]:
            raise _UnclearError(f"can't tell what to give for {name}")
        if "float" in self.annotations[name]:
            raise _UnclearError(f"{name} is a fraction, and a problem's dimensions are whole numbers")
        return Argument(name, "number")

    def _calls(self, name: str) -> Iterator[ast.Call]:
        """The calls of ``tl.name``."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and _called(node) == name:
                yield node

    def _reaches(self, expression: ast.expr, call: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a value comes from such a call, also through variables."""
        for node in ast.walk(expression):
            if _called(node) == call:
                return True
            if isinstance(node, ast.Name) and node.id not in seen:
                around = seen | {node.id}
                if any(self._reaches(value, call, around) for value in self.values.get(node.id, [])):
                    return True
        return False


def _is_jitted(function: ast.FunctionDef) -> bool:
    return any(_names(each, "jit") for each in function.decorator_list)


def _names(decorator: ast.expr, wanted: str) -> bool:
    """Whether a decorator is ``wanted``, by itself or called."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return wanted == (target.attr if isinstance(target, ast.Attribute) else _name(target))


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _called(node: ast.AST) -> str:
    """The attribute that a node calls: ``load`` of ``tl.load(...)``; empty for another node."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return ""


def _first(call: ast.Call) -> object:
    """The only argument of a call, if it is a constant."""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return values[0].value if len(values) == 1 and isinstance(values[0], ast.Constant) else None


def _needed(tree: ast.Module, function: ast.FunctionDef, file: Path) -> list[ast.stmt]:
    """The top-level statements that the function needs, in their order. Raises _UnclearError for an import of
    a neighbouring file."""
    binding: dict[str, list[ast.stmt]] = {}
    needed: list[ast.stmt] = [function]
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            needed.append(statement)
        for name in _bound(statement):
            binding.setdefault(name, []).append(statement)
    for statement in needed:  # which grows meanwhile
        mentioned = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        found = (one for name in sorted(mentioned) for one in binding.get(name, []))
        needed += [one for one in dict.fromkeys(found) if one not in needed]
    for module in (name for statement in needed for name in _imported(statement)):
        beside = file.parent / module.partition(".")[0]
        is_beside = beside.is_dir() or beside.with_suffix(".py").is_file()
        if module.startswith(".") or (is_beside and beside.parent != ROOT):
            raise _UnclearError(f"its file imports {module}, which lies beside it and would not come along")
    return sorted(needed, key=lambda statement: statement.lineno)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a top-level statement binds."""
    for node in scope([statement]):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif name := bound(node):
            yield name


def _imported(statement: ast.stmt) -> Iterator[str]:
    """The modules that a statement imports, as it writes them."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def _source(text: str, statements: list[ast.stmt]) -> str:
    """The statements as they are written, with their decorators."""
    lines = text.splitlines()
    found = ""
    for statement in statements:
        decorators = getattr(statement, "decorator_list", [])
        begin = min([statement.lineno, *(one.lineno for one in decorators)])
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            found += "\n\n"
        found += "\n".join(lines[begin - 1 : statement.end_lineno]) + "\n"
    return found
