"""Find the definitions that a function depends on, and digest them.

The source is parsed into syntax trees and never imported. From an entry, every name that its definition
mentions is followed, also through imports, if the modules lie in the roots. Importing a module runs it. So
the statements at a module's top level that do more than define names belong to every definition that comes
from the module or imports it.

The definitions are numbered as they are reached, so that their names, their order and their modules do not
change the digest; ``pipeline.keys.forms`` decides which parts of a definition count. In doubt a definition
counts. Dependencies that the text does not show are missed: a module whose name is computed, an attribute set
from elsewhere, a registration by a decorator.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from . import forms
from .followed_modules import FollowedModules
from .holes import ByString, Form, Imported, Keyword, Name, Parameter, Private, chain, digest_of, is_private
from .local_scopes import place_of
from .naming import Attribute, Facts, Given, NamedParameter, Naming, hands_on
from .syntax import Import, Module, scope

METHODS = "*"
"""In ``Class.*``, stands for all of a class but its fields."""


@dataclass(frozen=True)
class Closure:
    """Everything that some entries reach.

    digest:
        A digest of the definitions' code.
    definitions:
        The definitions, as ``module:name``.
    files:
        The files that hold the definitions or that importing them runs, each with the strings and names in
        its code that the entries reach.
    elsewhere:
        The modules outside the roots that they import.
    """

    digest: str
    definitions: tuple[str, ...]
    files: Mapping[Path, frozenset[str]]
    elsewhere: frozenset[str]


def closure(
    entries: Sequence[tuple[Path, str]],
    roots: Mapping[str, Path],
    stop: Sequence[str] = (),
    given: Collection[str] = (),
) -> Closure:
    """Return the closure of the entries, taken in order.

    entries:
        Files and the names of top-level definitions in them. ``Class.*`` is a class without its fields: its
        methods and all else in its body, its decorators, and its bases likewise where they are classes in a
        root. A method that names its own class reaches the whole class, because an instance that it makes has
        the fields' defaults.
    roots:
        The folder of each package whose modules are followed; an import of any other module adds its name.
    stop:
        Modules that are not followed although they lie in a root, with all modules below them. A definition
        of theirs counts by its name, whichever module defines it.
    given:
        Names of parameters that callers of the entries pass by keyword, besides the keyword-only parameters.

    Raises LookupError with a sentence for an entry that lies in no root or names no such definition or class,
    and SyntaxError with the file's name for a file that is not Python.
    """
    walk = _Walk(roots, stop)
    written = [walk.enter(file, name, given) for file, name in entries]
    return walk.finish(written)


class _Target(NamedTuple):
    """A name's referent, with the attributes accessed on it.

    ``kind`` is ``definition`` for a definition of a module, ``methods`` for a class without its fields,
    ``module`` for a whole module, ``stopped`` for a name in a module of ``stop``, ``elsewhere`` for a name
    outside the roots, or ``builtin``.
    """

    kind: str
    module: str
    name: str
    rest: tuple[str, ...] = ()


class _Walk:
    """A closure under construction."""

    def __init__(self, roots: Mapping[str, Path], stop: Sequence[str]) -> None:
        self._modules = FollowedModules(roots, stop)
        self._numbers: dict[_Target, int] = {}
        self._pending: list[_Target] = []
        self._facts = Facts()
        self._targets: dict[tuple[str, tuple[str, ...]], _Target] = {}
        self._written: list[list[object]] = []

    def enter(self, file: Path, name: str, given: Collection[str]) -> object:
        """Start at a top-level definition of a file, or at a class's methods. Return its number, and for a
        function the index and name of each parameter that callers pass by keyword."""
        module = self._modules.read(self._modules.name_of(file))
        defined = name.removesuffix(f".{METHODS}")
        if module is None or defined not in module.bindings:
            raise LookupError(f"{file} defines no '{defined}' at its top level.")
        if defined != name and not any(map(_is_class, module.bindings[defined])):
            raise LookupError(f"'{defined}' of {file} is not a class that this file defines.")
        self._modules.touch(module.name)
        if defined != name:
            return self._number(_Target("methods", module.name, defined))
        target = self._resolved(module, (defined,))
        arguments = self._arguments(target)
        named = [] if arguments is None else [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        alone = set() if arguments is None else {one.arg for one in arguments.kwonlyargs}
        places = [[place, one.arg] for place, one in enumerate(named) if one.arg in alone.union(given)]
        return [self._tokens(target)[0], sorted(places, key=lambda each: str(each[1]))]

    def finish(self, entries: list[object]) -> Closure:
        """Follow all reached definitions until there are no new definitions, and return the closure."""
        acted: set[str] = set()
        while True:
            while self._pending:
                self._define(self._pending.pop(0))
            acting = [
                module
                for name in self._modules.touched - acted
                if (module := self._modules.read(name)) is not None and module.effects
            ]
            acted |= self._modules.touched
            if not acting:
                break
            for module in sorted(acting, key=lambda one: (self._known_effects(one), one.name)):
                self._write(module, [self._form(module, one) for one in module.effects])
        opened = [one for line in self._written for one in line]
        naming = Naming(
            [one for one in opened if isinstance(one, Attribute | Given | NamedParameter)], self._facts
        )
        labels = [naming.label(target.name) for target in self._numbers]
        filled = [
            [
                naming.symbol(one) if isinstance(one, Attribute | Given | NamedParameter) else one
                for one in line
            ]
            for line in self._written
        ]
        return Closure(
            digest=digest_of([entries, labels, filled]),
            definitions=tuple(sorted({f"{one.module}:{one.name}" for one in self._numbers if one.name})),
            files={file: frozenset(mentions) for file, mentions in self._modules.files.items()},
            elsewhere=frozenset(self._modules.elsewhere),
        )

    # Definitions.

    def _define(self, target: _Target) -> None:
        """Write the statements that bind a name, or all names of a module."""
        module = self._modules.read(target.module)
        assert module is not None, "what is reached has been read"
        if target.kind == "module":
            self._written.append([])
            for name in sorted(module.bindings):
                of_name = self._resolved(module, (name,))
                self._facts.passed.add((of_name.module, of_name.name))
                self._written[-1] += [name, *self._tokens(of_name)]
            return
        statements = module.bindings[target.name]
        alone = statements[0] if len(statements) == 1 else None
        if isinstance(alone, ast.ClassDef):
            self._class(module, alone, fields=target.kind != "methods")
        else:
            self._write(module, [self._form(module, one) for one in statements])

    def _class(self, module: Module, definition: ast.ClassDef, fields: bool) -> None:
        bases: list[tuple[str, str]] = []
        others: list[str] = []
        written: list[object] = []
        for base in definition.bases:
            generic, arguments = (base.value, [base.slice]) if isinstance(base, ast.Subscript) else (base, [])
            names = chain(generic)
            target = None if names is None else self._resolved(module, names)
            if target is not None and target.kind == "definition" and not target.rest:
                bases.append((target.module, target.name))
                if not fields:
                    target = _Target("methods", target.module, target.name)
                    arguments = [*arguments]
                    written.append(self._number(target))
            elif target is None or target.kind != "stopped":
                others.append("" if names is None else names[-1])
            if not fields and (target is None or target.kind != "methods"):
                arguments = [base]
            if not fields:
                for one in arguments:
                    self._write(module, [self._form(module, one)])
        self._facts.add_class((module.name, definition.name), bases, others)
        self._write(module, [forms.of_class(definition, module.lazy_annotations, fields)], written)

    def _form(self, module: Module, node: ast.AST) -> Form:
        return forms.of_statement(node, module.lazy_annotations)

    def _write(self, module: Module, written: Sequence[Form], before: Sequence[object] = ()) -> None:
        line: list[object] = [*before]
        self._written.append(line)
        for form in written:
            self._facts.add(form)
            self._modules.mentions[module.name] |= form.texts
            line.append(form.digest)
            for hole in form.holes:
                line += self._fill(module, hole)

    def _known_effects(self, module: Module) -> str:
        """Return a sort key for a module with top-level effects: a digest of them and of the numbers given so
        far."""
        known: list[object] = []
        for form in [self._form(module, one) for one in module.effects]:
            known.append(form.digest)
            for hole in form.holes:
                target = self._resolved(module, hole.names) if isinstance(hole, Name) else None
                bare = target and target._replace(rest=())
                known.append([target and target.kind, self._numbers.get(bare) if bare else None])
        return digest_of(known)

    # Names.

    def _fill(self, module: Module, hole: object) -> list[object]:  # noqa: PLR0911  # a case a kind of hole
        match hole:
            case Name(names=names, is_called=is_called):
                target = self._resolved(module, names)
                if not is_called:
                    self._facts.passed.add((target.module, target.name))
                self._mention(module, target)
                return self._tokens(target)
            case Parameter(name=name, method=method, function=function):
                return [NamedParameter(name, method, None if function is None else (module.name, function))]
            case Imported(statement=statement, attributes=attributes):
                target = self._imported(module, statement, attributes)
                self._facts.passed.add((target.module, target.name))
                self._mention(module, target)
                return self._tokens(target)
            case ByString(name=name):
                level = len(name) - len(name.lstrip("."))
                return self._tokens(self._of_module(module.absolute(name.lstrip("."), level), ()))
            case Private(owner=owner, name=name, binds=binds):
                return [Attribute(None if owner is None else (module.name, owner), name, binds)]
            case Keyword():
                return [self._given(module, hole)]
        return [hole]

    def _mention(self, module: Module, target: _Target) -> None:
        if target.kind in ("elsewhere", "builtin"):
            self._modules.mentions[module.name].update([*target.name.split("."), *target.rest])

    def _tokens(self, target: _Target) -> list[object]:
        """Return a name's form in the digest: the definition's number or the name, then the attributes."""
        bare = target._replace(rest=())
        owner = (target.module, target.name) if self._class_of(target) else None
        rest: list[object] = []
        for place, name in enumerate(target.rest):
            of_class = owner if not place else None
            rest.append(Attribute(of_class, name, binds=False) if is_private(name) else name)
        match target.kind:
            case "elsewhere":
                return [["elsewhere", target.name, *target.rest]]
            case "builtin":
                return [["builtin", target.name], *rest]
            case "stopped":
                return [["stopped", self._number(bare, is_followed=False), target.name, *target.rest]]
        return [self._number(bare), *rest]

    def _number(self, target: _Target, is_followed: bool = True) -> int:
        if target not in self._numbers:
            self._numbers[target] = len(self._numbers)
            if is_followed:
                self._pending.append(target)
        return self._numbers[target]

    def _class_of(self, target: _Target) -> ast.ClassDef | None:
        """Return the class that a name refers to, None for anything else."""
        if target.kind not in ("definition", "methods"):
            return None
        found = self._statement(target)
        return found if isinstance(found, ast.ClassDef) else None

    def _arguments(self, target: _Target) -> ast.arguments | None:
        """Return the parameters of the function that a name refers to, None for anything else."""
        if target.kind != "definition" or target.rest:
            return None
        found = self._statement(target)
        return found.args if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else None

    def _statement(self, target: _Target) -> ast.stmt | None:
        """Return the only statement that binds a name, None if there are several or none."""
        module = self._modules.read(target.module)
        statements = module.bindings[target.name] if module else []
        return statements[0] if len(statements) == 1 else None

    def _given(self, module: Module, hole: Keyword) -> object:
        """Return a keyword argument's stand-in: the parameter's index, or a ``Given`` that ``Naming``
        resolves."""
        match hole.callee:
            case Name(names=names):
                target = self._resolved(module, names)
            case Imported(statement=statement, attributes=attributes):
                target = self._imported(module, statement, attributes)
            case _:
                return Given(hole.name, "method" if hole.method else "anywhere", hole.method)
        if target.kind in ("elsewhere", "stopped") or (target.kind == "builtin" and not target.rest):
            path = target.name if target.kind != "stopped" else ""
            ours = (self._resolved(module, names) for names in hole.given)
            passes = any(self._arguments(one) or self._class_of(one) for one in ours)
            return Given(hole.name, "anywhere" if hands_on(path, passes) else "shown")
        if target.rest:
            return Given(hole.name, "method", target.rest[-1])
        made = self._class_of(target)
        if made is not None:
            return self._given_class(module, made, hole.name)
        arguments = self._arguments(target)
        place = None if arguments is None or hole.name is None else place_of(hole.name, arguments)
        return Given(hole.name, "anywhere") if place is None else place

    def _given_class(self, module: Module, made: ast.ClassDef, name: str | None) -> object:
        """Return the representation of a keyword argument of a call of a class. A field keeps its name."""
        for method in made.body:
            if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "__new__"):
                place = None if name is None else place_of(name, method.args)
                return Given(name, "anywhere") if place is None else place
        for base in made.bases:
            names = chain(base)
            target = None if names is None else self._resolved(module, names)
            above = None if target is None else self._class_of(target)
            if target is not None and above is not None:
                of_base = self._modules.read(target.module)
                assert of_base is not None, "a class that is found has been read"
                return self._given_class(of_base, above, name)
        return Given(name, "shown")

    # Modules.

    def _resolved(self, module: Module, names: tuple[str, ...]) -> _Target:
        """Return the definition that a module-level name refers to, with the attributes accessed on it."""
        key = module.name, names
        if key not in self._targets:
            self._targets[key] = _Target("builtin", "", names[0], names[1:])  # ends a cycle of names
            self._targets[key] = self._resolve(module, names[0], names[1:])
        return self._targets[key]

    def _resolve(self, module: Module, name: str, attributes: tuple[str, ...]) -> _Target:
        statements = module.bindings.get(name)
        if statements is None:
            return _Target("builtin", "", name, attributes)
        if len(statements) == 1 and isinstance(statements[0], Import):
            return self._imported(module, statements[0], attributes)
        if all(isinstance(one, ast.Import) and not one.names[0].asname for one in statements):
            return self._of_module(name, attributes)
        return _Target("definition", module.name, name, attributes)

    def _imported(self, module: Module, imported: Import, attributes: tuple[str, ...]) -> _Target:
        """Return the definition or module that an imported name refers to, with its accessed attributes."""
        self._modules.touch_imported(module, imported)
        (alias,) = imported.names
        if isinstance(imported, ast.Import):
            return self._of_module(alias.name if alias.asname else alias.name.partition(".")[0], attributes)
        base = module.absolute(imported.module or "", imported.level)
        if alias.name == "*":
            return self._of_module(base, ())
        if base == module.name and self._modules.is_module(f"{base}.{alias.name}"):
            # A package imports its own submodule: the name is bound by this import itself.
            return self._of_module(f"{base}.{alias.name}", attributes)
        return self._of_module(base, (alias.name, *attributes))

    def _of_module(self, name: str, attributes: tuple[str, ...]) -> _Target:
        """Return the definition that ``name.attribute`` refers to, or the module if it names none."""
        self._modules.touch(name)
        module = self._modules.read(name)
        if attributes and module and attributes[0] in module.bindings:
            return self._resolved(module, attributes)
        child = f"{name}.{attributes[0]}" if attributes else ""
        begins_stop = self._modules.is_stopped(child) and not self._modules.is_stopped(name)
        if child and (self._modules.is_module(child) or begins_stop):
            return self._of_module(child, attributes[1:])
        if module:
            return _Target("module", name, "", attributes)
        if self._modules.is_stopped(name):
            if child and self._modules.exists(child):
                return self._of_module(child, attributes[1:])
            return _Target("stopped", name, attributes[0] if attributes else "", attributes[1:])
        return _Target("elsewhere", "", ".".join([name, *attributes]))


def _is_class(statement: ast.stmt) -> bool:
    """Whether a statement defines a class, at least in one of its branches."""
    return any(isinstance(node, ast.ClassDef) for node in scope([statement]))
