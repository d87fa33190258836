"""Recognize the parts of Python source that people read: the arguments of exceptions, warnings and prints."""

from __future__ import annotations

import ast
from collections.abc import Iterable

_SAYING = {"print", "warn", "say"}
_LOGGING = {"warn", "warning", "info", "debug", "error", "exception", "critical"}

_READING = {
    "len",
    "min",
    "max",
    "sum",
    "abs",
    "str",
    "repr",
    "round",
    "int",
    "float",
    "type",
    "sorted",
    "list",
}
_JOINING = {"join", "strip", "lower", "upper", "title"}
"""Functions (``_READING``) and methods (``_JOINING``) that only return a value."""

_EXPRESSIONS = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp, ast.BoolOp),
    *(ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.JoinedStr, ast.FormattedValue),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


def says(function: ast.expr) -> bool:
    """Whether people read the arguments of a call: it is a print, a warning or an exception."""
    match function:
        case ast.Name(id=name):
            return name in _SAYING or name.endswith(("Error", "Warning", "Exception"))
        case ast.Attribute(attr=name):
            return name in _LOGGING or name.endswith(("Error", "Warning", "Exception"))
    return False


def is_sentence(text: str) -> bool:
    """Whether a string has several words: a word alone may be a name or a status."""
    return len(text.split()) > 1


def text_of(values: Iterable[ast.expr]) -> str:
    """Return the text of an f-string, with ``{}`` for each of its values."""
    return "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in values)


def only_reads(values: Iterable[ast.expr]) -> bool:
    """Whether putting an f-string together only reads values, without side effects."""
    return all(_reads(node) for value in values for node in ast.walk(value))


def _reads(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in _READING
        case ast.Call(func=ast.Attribute(attr=name), keywords=[]):
            return name in _JOINING
    return isinstance(node, _EXPRESSIONS)
