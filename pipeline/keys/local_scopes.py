"""The names that functions, comprehensions and class bodies bind."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .syntax import Import, bound, scope


@dataclass
class Scope:
    """The names bound in a function, a comprehension or a class body.

    ``imports`` are the names that one import binds and nothing else, ``functions`` those that one ``def``
    binds and nothing else. ``outside`` are the names declared global. ``itself`` is a method's name for its
    object.
    """

    names: frozenset[str]
    is_class: bool = False
    serial: int = -1
    imports: dict[str, Import] = field(default_factory=dict)
    functions: dict[str, ast.arguments] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()
    itself: str | None = None


def place_of(name: str, given: ast.arguments) -> int | None:
    """Return the index of the parameter of that name, None if there is none."""
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return names.index(name) if name in names else None


def bound_in(body: Iterable[ast.AST]) -> frozenset[str]:
    """Return the names that are bound in a body."""
    return frozenset(filter(None, map(bound, scope(body))))


def scope_of(body: list[ast.AST], parameters: Sequence[str]) -> Scope:
    """Return the scope of a function with this body and these parameters."""
    inside = list(scope(body))
    declared = [node for node in inside if isinstance(node, ast.Global | ast.Nonlocal)]
    elsewhere = {name for node in declared for name in node.names}
    binders: dict[str, list[ast.AST]] = {}
    for node in inside:
        if (name := bound(node)) is not None and name not in elsewhere:
            binders.setdefault(name, []).append(node)
    alone = {name: nodes[0] for name, nodes in binders.items() if len(nodes) == 1 and name not in parameters}
    return Scope(
        frozenset({*binders, *parameters} - elsewhere),
        imports={name: node for name, node in alone.items() if isinstance(node, Import)},
        functions={name: node.args for name, node in alone.items() if isinstance(node, ast.FunctionDef)},
        outside=frozenset(name for node in declared if isinstance(node, ast.Global) for name in node.names),
    )
