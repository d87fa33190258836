"""Python source as syntax trees: the parts that run, the names that they bind, and the fields to digest.

A tree has no comments and no formatting; docstrings, ``if TYPE_CHECKING`` and ``if __name__ == "__main__"``
are removed as a file is read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

Import = ast.Import | ast.ImportFrom
"""A statement that binds one imported name; ``Module.read`` splits an import of several names."""

SILENT = {"ctx", "kind", "type_comment", "type_ignores"}
"""Fields of a syntax tree that are redundant or never run."""

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields that hold lists of statements; no other field has to be searched for statements."""


def literal(value: object) -> str:
    """Return a constant's text. A string is its own text, because its repr depends on the Python version."""
    match value:
        case str():
            return value
        case float():
            return value.hex()
        case int():
            # Python refuses to write more than 4300 decimal digits.
            return hex(value)
        case complex():
            return f"{value.real.hex()} {value.imag.hex()}"
        case _:
            return repr(value)


def pieces(values: Iterable[ast.expr]) -> list[str | ast.expr]:
    """Return the parts of an f-string, with adjacent texts joined: Python versions split them differently at
    braces."""
    found: list[str | ast.expr] = []
    for value in values:
        if not isinstance(value, ast.Constant):
            found.append(value)
        elif found and isinstance(found[-1], str):
            found[-1] += str(value.value)
        elif value.value:
            found.append(str(value.value))
    return found


class _Essence(ast.NodeTransformer):
    """Removes code that never runs, and splits imports into one statement for each name."""

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt] | None:
        left: ast.AST | list[ast.stmt] | None = super().visit(node)
        if isinstance(left, ast.AST) and not isinstance(left, ast.Module) and vars(left).get("body") == []:
            vars(left)["body"] = [ast.Pass()]
        return left

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit each statement in a node's blocks."""
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            left = [self.visit(statement) for statement in block]
            block[:] = [one for found in left for one in (found if isinstance(found, list) else [found])]
            block[:] = filter(None, block)
        return node

    def visit_Pass(self, node: ast.Pass) -> None:
        """Remove ``pass``, which does no more than an empty body."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove constants: docstrings, also below a constant or a field, and ``...``."""
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Replace ``if TYPE_CHECKING`` and ``if __name__ == "__main__"`` by their else branch."""
        self.generic_visit(node)
        match node.test:
            case (
                ast.Name(id="TYPE_CHECKING")
                | ast.Attribute(attr="TYPE_CHECKING")
                | ast.Compare(
                    left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]
                )
            ):
                return node.orelse
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        return [ast.Import(names=[alias]) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:
        return [ast.ImportFrom(module=node.module, names=[alias], level=node.level) for alias in node.names]


def scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes in the scope of ``nodes``, without the bodies of functions and classes."""
    waiting = [*nodes]
    waiting.reverse()
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                inner: list[ast.AST] = []
            case ast.comprehension():
                # Its targets are local to it, but a walrus in it binds a name outside.
                inner = [node.iter, *node.ifs]
            case _:
                inner = [*ast.iter_child_nodes(node)]
        inner.reverse()
        waiting += inner


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all statements inside it, including the bodies of functions and classes."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        for name in _BLOCKS:
            block = getattr(one, name, None)
            if isinstance(block, list):  # a lambda's body is an expression
                waiting += block


def bound(node: ast.AST) -> str | None:
    """Return the name that a node binds in its scope, ``*`` for a star import, None if it binds none."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store())
            | ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
            | ast.ClassDef(name=name)
            | ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.MatchMapping(rest=str(name))
        ):
            return name
        case ast.Import(names=[alias]):
            return alias.asname or alias.name.partition(".")[0]
        case ast.ImportFrom(names=[alias]):
            return alias.asname or alias.name
    return None


def _acts(statement: ast.stmt) -> bool:
    """Whether a top-level statement does more than bind names."""
    nodes = list(scope([statement]))
    return not any(map(bound, nodes)) or any(
        isinstance(node, ast.Expr | ast.Delete | ast.Assert | ast.Raise)
        or (isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store))
        or bound(node) == "*"
        for node in nodes
    )


def _about_exports(statement: ast.stmt) -> bool:
    """Whether a statement only sets or extends ``__all__``."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
        return False
    names = (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
    return next(names, "") == "__all__"


@dataclass
class Module:
    """A module's top level: the statements that bind each name, and in ``effects`` the statements that do
    more than that."""

    name: str
    package: str
    lazy_annotations: bool = False
    bindings: dict[str, list[ast.stmt]] = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)

    @classmethod
    def read(cls, name: str, file: Path) -> Module:
        """Parse the module in a file; the same text is parsed once. Raises SyntaxError with the file's
        name."""
        return cls._parsed(name, file, file.read_bytes())

    @classmethod
    @cache
    def _parsed(cls, name: str, file: Path, text: bytes) -> Module:
        module = cls(name, name if file.name == "__init__.py" else name.rpartition(".")[0])
        tree = ast.parse(text, filename=str(file))
        _Essence().visit(tree)
        for statement in tree.body:
            if not _about_exports(statement):
                module._add(statement)
        return module

    def _add(self, statement: ast.stmt) -> None:
        nodes = list(scope([statement]))
        self.imports += [node for node in nodes if isinstance(node, Import)]
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            self.lazy_annotations |= statement.names[0].name == "annotations"
        # A function that assigns a global name is one of the places where that name gets its value.
        globals_in = (node.names for node in _statements(statement) if isinstance(node, ast.Global))
        declared = [name for names in globals_in for name in names]
        for name in dict.fromkeys([*filter(None, map(bound, nodes)), *declared]):
            self.bindings.setdefault(name, []).append(statement)
        if _acts(statement):
            self.effects.append(statement)

    def absolute(self, name: str, level: int) -> str:
        """Return the absolute name of a module that is imported here with ``level`` dots."""
        if not level:
            return name
        package = self.package.split(".")
        return ".".join(filter(None, [*package[: len(package) - level + 1], name]))
