"""Normalize a statement to its form: its code, without the names that are visible only inside it.

Locals and parameters become numbers, in the order of their first occurrence. Every other name becomes a hole,
because whether the name matters depends on all reached code: ``pipeline.keys.naming`` fills the holes. Two
different names never get the same number. In doubt a name matters.
"""

from __future__ import annotations

import ast
from functools import cache

from .holes import Form, Private, is_private
from .writer import Writer


@cache
def of_statement(node: ast.AST, lazy_annotations: bool) -> Form:
    """Return the form of a module-level statement, or of a part of one."""
    if isinstance(node, ast.ClassDef):
        return of_class(node, lazy_annotations, fields=True)
    return Writer(lazy_annotations).form(node)


@cache
def of_class(node: ast.ClassDef, lazy_annotations: bool, fields: bool) -> Form:
    """Return the form of a module-level class. Without ``fields``, its name, bases and field declarations are
    left out.

    The order of methods does not matter: public methods are sorted by name, private ones by their first
    mention.
    """
    head: list[ast.AST] = [*node.decorator_list, *node.keywords]
    if fields:
        head = [ast.Name(node.name, ast.Store()), *node.bases, *head]
    ordered = [one for one in node.body if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not fields:
        ordered = [one for one in ordered if not declares_field(one)]
    forms = [Writer(lazy_annotations).form(*head, kind="head")]
    forms += [Writer(lazy_annotations, node).form(one) for one in ordered]
    methods: dict[str, list[Form]] = {}
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            methods.setdefault(one.name, []).append(Writer(lazy_annotations, node).form(one))
    for name in sorted(name for name in methods if not is_private(name)):
        forms += methods.pop(name)
    place = 0
    while methods:
        while place < len(forms):
            for hole in forms[place].holes:
                if isinstance(hole, Private) and hole.owner == node.name:
                    forms += methods.pop(hole.name, [])
            place += 1
        if methods:  # private methods that the class itself does not mention
            forms += methods.pop(min(methods, key=lambda name: [form.digest for form in methods[name]]))
    return Form.joined("class", forms)


def declares_field(statement: ast.stmt) -> bool:
    """Whether a statement of a class declares a field: a name with an annotation other than ClassVar."""
    return isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement.annotation)
