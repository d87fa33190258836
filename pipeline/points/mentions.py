"""The names from outside that a piece of Python mentions, read off its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from pipeline.points.syntax import Import, bound, scope

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

_DEAF = {"property", "setter", "cached_property", "classmethod", "staticmethod"}
"""Decorators that read no annotations."""


def chain(node: ast.expr) -> tuple[str, ...] | None:
    """A name with the attributes taken from it; None for another expression, or an attribute of one."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=value, attr=attribute):
            names = chain(value)
            return None if names is None else (*names, attribute)
    return None


def _reads_annotations(decorator: ast.expr) -> bool:
    names = chain(decorator)
    return names is None or names[-1] not in _DEAF


class Mentions(ast.NodeVisitor):
    """The names from outside that a statement mentions, each with the attributes taken from it, and the
    modules that it imports by a string."""

    def __init__(self, lazy_annotations: bool) -> None:
        self.chains: list[tuple[str, ...]] = []
        self.modules: list[str] = []
        self._lazy = lazy_annotations
        self._local: frozenset[str] = frozenset()
        self._annotations = True

    def visit(self, node: ast.AST) -> None:
        """Add what a node mentions."""
        match node:
            case ast.Name(ctx=ast.Store()) | ast.Constant() | ast.expr_context():
                pass
            case ast.Name() | ast.Attribute():
                self._chain(node)
            case ast.Global(names=names):
                self.chains += [(name,) for name in names]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._function(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node)
            case ast.AnnAssign():
                self._all([node.target, node.value, node.annotation if self._annotations else None])
            case _:
                self._imports_by_string(node)
                self.generic_visit(node)

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in filter(None, nodes):
            self.visit(node)

    def _chain(self, node: ast.expr) -> None:
        """A name with the attributes taken from it, or what another expression with attributes mentions."""
        names = chain(node)
        if names is None:
            self.generic_visit(node)
        elif names[0] not in self._local:
            self.chains.append(names)

    def _imports_by_string(self, node: ast.AST) -> None:
        match node:
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                self.modules.append(name)

    def _function(self, node: _Function) -> None:
        """Decorators, defaults and annotations belong to the scope around a function.

        Annotations that stay text decide nothing, unless a decorator reads them, as Triton's does.
        """
        around = (self._local, self._annotations)
        given = node.args
        named = [
            *given.posonlyargs,
            *given.args,
            *given.kwonlyargs,
            *filter(None, [given.vararg, given.kwarg]),
        ]
        self._all([*given.defaults, *given.kw_defaults])
        if not isinstance(node, ast.Lambda):
            self._all(node.decorator_list)
            self._annotations = not self._lazy or any(map(_reads_annotations, node.decorator_list))
            if self._annotations:
                self._all([*(argument.annotation for argument in named), node.returns])
        body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else [*node.body]
        inside = list(scope(body))
        # An imported name is never local here: what it was imported from is looked up in the whole statement.
        local = {bound(inner) for inner in inside if not isinstance(inner, Import)}
        outside = {name for inner in inside if isinstance(inner, ast.Global) for name in inner.names}
        self._local |= {name for name in local if name} | {argument.arg for argument in named}
        self._local -= outside
        self._all(body)
        self._local, self._annotations = around

    def _comprehension(self, node: _Comprehension) -> None:
        """The first iterable belongs to the scope around a comprehension."""
        around, first = self._local, node.generators[0].iter
        self.visit(first)
        targets = (inner for generator in node.generators for inner in ast.walk(generator.target))
        self._local |= frozenset(filter(None, map(bound, targets)))
        parts = [part for generator in node.generators for part in (generator.iter, *generator.ifs)]
        results = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.comprehension)]
        self._all(part for part in [*parts, *results] if part is not first)
        self._local = around
