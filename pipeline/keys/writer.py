"""Write a statement as JSON with holes in place of the names that are visible outside it."""

from __future__ import annotations

import ast

from . import messages
from .holes import (
    ByString,
    Form,
    Hole,
    Imported,
    Keyword,
    Name,
    Parameter,
    Private,
    chain,
    digest_of,
    is_private,
)
from .local_scopes import Scope, bound_in, place_of, scope_of
from .syntax import SILENT, Import, bound, literal, pieces

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

_DEAF = {"property", "setter", "cached_property", "classmethod", "staticmethod"}
"""Decorators that read no annotations."""

_PLAIN = {"cache", "contextmanager", "jit", "overload"}
"""Decorators that call the function with keyword arguments only if its caller passed some."""


class Writer:
    """Writes one statement as JSON with holes. ``owner`` is the class whose member the statement is."""

    def __init__(self, lazy_annotations: bool, owner: ast.ClassDef | None = None) -> None:
        self._lazy = lazy_annotations
        self._owner = owner
        self._scopes: list[Scope] = []
        self._entered = 0
        if owner is not None:
            self._enter(Scope(bound_in(owner.body), is_class=True))
        self._numbers: dict[tuple[int, str], int] = {}
        self._holes: list[Hole] = []
        self._words: set[str] = set()
        self._stored: set[str] = set()
        self._taken: set[str] = set()
        self._flags: set[str] = set()
        self._annotations = True
        self._names_locals = False

    def form(self, *nodes: ast.AST, kind: str = "statement") -> Form:
        """Return the form of some nodes together."""
        inside = [node for each in nodes for node in ast.walk(each)]
        self._names_locals = any(map(_sees_locals, inside))
        written = digest_of([kind, *map(self._write, nodes)])
        return Form(
            written,
            tuple(self._holes),
            frozenset(self._words),
            frozenset(filter(None, map(_text, inside))),
            frozenset(self._stored),
            frozenset(self._taken),
            frozenset(self._flags),
        )

    def _enter(self, inner: Scope) -> None:
        inner.serial = self._entered
        self._entered += 1
        self._scopes.append(inner)

    def _write(self, node: object) -> object:  # noqa: PLR0911, PLR0912  # a case a kind of node
        match node:
            case None | str() | int():
                return node
            case list():
                return [self._write(item) for item in node]
            case ast.Constant(value=value):
                if isinstance(value, str) and value.isidentifier():
                    self._words.add(value)
                return ["Constant", type(value).__name__, literal(value)]
            case ast.Name(id=name):
                return self._name((name,), isinstance(node.ctx, ast.Store))
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return self._function(node)
            case ast.ClassDef():
                return self._class(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return self._comprehension(node)
            case ast.JoinedStr():
                return ["JoinedStr", self._pieces(node)]
            case ast.FormattedValue(format_spec=ast.JoinedStr(values=values)) if not pieces(values):
                return ["FormattedValue", self._write(node.value), node.conversion]
            case ast.FormattedValue():
                return [
                    "FormattedValue",
                    self._write(node.value),
                    node.conversion,
                    self._write(node.format_spec),
                ]
            case ast.Import() | ast.ImportFrom():
                return self._import(node)
            case ast.Global() | ast.Nonlocal():
                return None  # counted where each name is used
            case ast.AnnAssign(simple=1) if not self._annotations:
                return ["Assign", self._write(node.target), self._write(node.value)]
            case ast.Raise(exc=ast.Call() as raised):
                return ["Raise", self._call(raised, is_message=True), self._write(node.cause)]
            case ast.Assert():
                return ["Assert", self._write(node.test), self._message(node.msg)]
            case ast.AST():
                return self._plain(node)
        raise TypeError(f"{node!r} is no part of a syntax tree")

    def _plain(self, node: ast.AST) -> object:
        """Write any other node, alike on all versions of Python. A field that a newer version adds is empty
        in source that an older version can parse."""
        written: list[object] = [type(node).__name__]
        name = bound(node)
        for each in node._fields:
            value = getattr(node, each, None)
            if value is None or value == [] or each in SILENT:
                continue
            if value == name and each in ("name", "rest"):
                written.append([each, self._name((value,), binds=True)])
            else:
                written.append([each, self._write(value)])
        return written

    def _name(self, names: tuple[str, ...], binds: bool = False, is_called: bool = False) -> object:
        """Write a name with the attributes accessed on it. The name becomes the number of a local, a member
        of the class around it, or a hole."""
        name, *attributes = names
        self._taken.update(attributes[:-1] if is_called else attributes)
        for depth in range(len(self._scopes) - 1, -1, -1):
            around = self._scopes[depth]
            if name in around.outside:
                break
            if around.is_class and depth < len(self._scopes) - 1:
                continue
            if name not in around.names:
                continue
            if not binds and name in around.imports:
                return self._hole(Imported(around.imports[name], tuple(attributes)))
            if around.is_class:
                first: object = ["member", self._member(name, around, binds)]
            elif self._names_locals:
                first = ["local", name]
            else:
                first = self._numbers.setdefault((around.serial, name), len(self._numbers))
            owner = self._owner.name if self._owner and name == around.itself else None
            return [
                first,
                *(self._named(one, owner if not place else None) for place, one in enumerate(attributes)),
            ]
        if name in ("globals", "__import__"):
            self._flags.add("globals")
        return self._hole(Name(names, is_called))

    def _member(self, name: str, around: Scope, binds: bool) -> object:
        if binds:
            self._stored.add(name)
        is_owners = self._owner is not None and around is self._scopes[0]
        owner = self._owner.name if self._owner is not None and is_owners else None
        return self._hole(Private(owner, name, binds)) if is_private(name) else name

    def _named(self, attribute: str, owner: str | None, binds: bool = False) -> object:
        """Write an attribute's name: a hole if it is private."""
        if attribute in ("__name__", "__qualname__"):
            self._flags.add("names")
        elif attribute == "__dict__":
            self._flags.add("attributes")
        if binds:
            self._stored.add(attribute)
        return self._hole(Private(owner, attribute, binds)) if is_private(attribute) else attribute

    def _attribute(self, node: ast.Attribute, is_called: bool = False) -> object:
        binds = isinstance(node.ctx, ast.Store)
        names = None if binds else chain(node)
        if names is not None:
            return self._name(names, is_called=is_called)
        if not is_called:
            self._taken.add(node.attr)
        owner = self._owner.name if self._owner is not None and self._is_itself(node.value) else None
        return ["Attribute", self._write(node.value), self._named(node.attr, owner, binds)]

    def _is_itself(self, node: ast.expr) -> bool:
        """Whether an expression in a method is the method's own object: ``self`` or ``super()``."""
        match node:
            case ast.Name(id=name):
                inside = [one for one in self._scopes if not one.is_class and name in one.names]
                return bool(inside) and inside[-1].itself == name
            case ast.Call(func=ast.Name(id="super"), args=[]):
                return True
        return False

    def _hole(self, hole: Hole) -> str:
        self._holes.append(hole)
        return type(hole).__name__

    def _call(self, node: ast.Call, is_message: bool = False) -> object:
        is_message = is_message or messages.says(node.func)
        match node:
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                return [
                    "Call",
                    self._write(node.func),
                    self._hole(ByString(name)),
                    *map(self._write, node.args[1:]),
                ]
            case ast.Call(func=ast.Name(id="vars" | "dir"), args=[given]) if self._is_local(given):
                self._flags.add("attributes")
        write = self._message if is_message else self._write
        written = ["Call", self._called(node.func), [write(one) for one in node.args]]
        callee = self._callee(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) and callee is None else None
        passed = tuple(found for one in node.args if (found := chain(one)) is not None)
        for one in node.keywords:
            place = self._place(node.func, one.arg)
            known = place if place is not None else self._hole(Keyword(one.arg, callee, method, passed))
            written.append([known, write(one.value)])
        return written

    def _called(self, node: ast.expr) -> object:
        """Write the callee of a call, or of a launch ``kernel[grid](...)``."""
        match node:
            case ast.Name(id=name):
                return self._name((name,), is_called=True)
            case ast.Attribute():
                return self._attribute(node, is_called=True)
            case ast.Subscript(value=ast.Name() | ast.Attribute() as value):
                return ["Subscript", self._called(value), self._write(node.slice)]
        return self._write(node)

    def _is_local(self, node: ast.expr) -> bool:
        names = chain(node)
        return names is None or any(names[0] in one.names for one in self._scopes)

    def _callee(self, node: ast.expr) -> Name | Imported | None:
        """Return the module-level or imported name that a call or a launch ``kernel[grid](...)`` calls, None
        for any other callee."""
        names = chain(node.value if isinstance(node, ast.Subscript) else node)
        if names is None:
            return None
        for around in reversed(self._scopes):
            if names[0] in around.names and not around.is_class:
                imported = around.imports.get(names[0])
                return None if imported is None else Imported(imported, names[1:])
        return Name(names)

    def _place(self, node: ast.expr, name: str | None) -> int | None:
        """Return the index of a parameter, if the callee is a function defined in this statement."""
        if isinstance(node, ast.Name) and name is not None:
            for around in reversed(self._scopes):
                if node.id in around.names and not around.is_class:
                    return place_of(name, around.functions[node.id]) if node.id in around.functions else None
        return None

    def _message(self, node: ast.expr | None) -> object:  # noqa: PLR0911  # a case a kind of node
        """Write an argument that people read. Its text is left out; its expressions are written if they could
        do more than read values."""
        match node:
            case None:
                return None
            case ast.Constant(value=str(text)) if messages.is_sentence(text):
                return "message"
            case ast.JoinedStr(values=values) if messages.is_sentence(messages.text_of(values)):
                if messages.only_reads(values):
                    return "message"
                return [
                    "message",
                    [self._write(one.value) for one in values if isinstance(one, ast.FormattedValue)],
                ]
            case ast.BinOp(left=left, op=op, right=right):
                return ["BinOp", self._message(left), type(op).__name__, self._message(right)]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return ["IfExp", self._write(test), self._message(body), self._message(orelse)]
        return self._write(node)

    def _pieces(self, node: ast.JoinedStr) -> object:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and str(first.value).startswith("_") and len(node.values) > 1:
            self._flags.add(str(first.value))  # may build a private name
        return [one if isinstance(one, str) else self._write(one) for one in pieces(node.values)]

    def _function(self, node: _Function) -> object:
        """Write a function. Its decorators, defaults and annotations belong to the enclosing scope.

        Lazy annotations are written only if a decorator may read them, as Triton's does.
        """
        before = self._annotations
        given = node.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        parameters += [one for one in (given.vararg, given.kwarg) if one is not None]
        decorators: list[ast.expr] = [] if isinstance(node, ast.Lambda) else node.decorator_list
        written: list[object] = [type(node).__name__, self._write(decorators)]
        written += [self._write(given.defaults), self._write(given.kw_defaults)]
        written += [len(given.posonlyargs), len(given.args), bool(given.vararg), bool(given.kwarg)]
        method = function = None
        is_plain = all((chain(one) or ("",))[-1] in _PLAIN for one in decorators)
        if isinstance(node, ast.Lambda):
            body: list[ast.AST] = [node.body]
        else:
            body = [*node.body]
            written.append(self._name((node.name,), binds=False))
            is_member = bool(self._scopes) and self._scopes[-1].is_class
            method = node.name if is_member else None
            function = None if self._scopes or not is_plain else node.name
            if is_member:
                self._binds_method(node.name)
            self._annotations = not self._lazy or any(map(_reads_annotations, decorators))
            if self._annotations:
                written += [self._write([one.annotation for one in parameters]), self._write(node.returns)]
        static = any((chain(one) or ("",))[-1] == "staticmethod" for one in decorators)
        positional = [*given.posonlyargs, *given.args]
        inner = scope_of(body, [one.arg for one in parameters])
        if (
            method is not None
            and self._owner is not None
            and len(self._scopes) == 1
            and positional
            and not static
        ):
            itself = positional[0].arg
            inner.itself = None if itself in bound_in(body) else itself
        self._enter(inner)
        for one in parameters:
            written.append(
                [self._name((one.arg,), binds=True), self._hole(Parameter(one.arg, method, function))]
            )
        written.append(self._write(body))
        self._scopes.pop()
        self._annotations = before
        return written

    def _binds_method(self, name: str) -> None:
        if is_private(name):
            owner = self._owner.name if self._owner is not None and len(self._scopes) == 1 else None
            self._holes.append(Private(owner, name, binds=True))

    def _class(self, node: ast.ClassDef) -> object:
        """Write a class nested in a statement, with its body in order."""
        written = ["ClassDef", self._name((node.name,), binds=True)]
        written += map(self._write, (node.decorator_list, node.bases, node.keywords))
        self._enter(Scope(bound_in(node.body), is_class=True))
        written.append(self._write(node.body))
        self._scopes.pop()
        return written

    def _comprehension(self, node: _Comprehension) -> object:
        """Write a comprehension. Its first iterable belongs to the enclosing scope."""
        first = self._write(node.generators[0].iter)
        targets = [inner for one in node.generators for inner in ast.walk(one.target)]
        self._enter(Scope(frozenset(filter(None, map(bound, targets)))))
        written: list[object] = [type(node).__name__, first]
        for place, one in enumerate(node.generators):
            written.append([self._write(one.target), self._write(one.ifs), one.is_async])
            if place:
                written.append(self._write(one.iter))
        results = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.comprehension)]
        written.append(self._write(results))
        self._scopes.pop()
        return written

    def _import(self, node: Import) -> object:
        """Write an import in a function, or inside another statement at the module's top level."""
        name = bound(node)
        if name is None or name == "*" or any(name in one.imports for one in self._scopes[-1:]):
            return ["Import", self._hole(Imported(node))]
        return ["Import", self._name((name,), binds=True), self._hole(Imported(node))]


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)) | ast.Attribute(attr=text):
            return text
    return None


def _sees_locals(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="locals" | "eval" | "exec")):
            return True
        case ast.Call(func=ast.Name(id="vars" | "dir"), args=[]):
            return True
    return False


def _reads_annotations(decorator: ast.expr) -> bool:
    names = chain(decorator)
    return names is None or names[-1] not in _DEAF
