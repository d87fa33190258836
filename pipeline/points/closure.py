"""Find the definitions that a function depends on, and digest them.

The source is parsed into syntax trees and never imported. From an entry, every name that its definition
mentions is followed, through imports too, as far as the modules lie in the roots. Importing a module runs it.
So the statements at a module's top level that do more than define names count for every definition that comes
from the module or imports it.

The definitions are numbered as they are reached, so that their names, their order and their modules do not
change the digest; ``pipeline.points.forms`` decides which parts of a definition count. In doubt a definition
counts. Dependencies that the text does not show are missed: a module whose name is computed, an attribute set
from elsewhere, a registration by a decorator.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.points import forms
from pipeline.points.forms import ByString, Form, Imported, Keyword, Name, Private, chain, digest_of
from pipeline.points.naming import Attribute, Facts, Given, NamedParameter, Naming, hands_on
from pipeline.points.syntax import Import, Module, scope

METHODS = "*"
"""In ``Class.*``, stands for all of a class but its fields."""


@dataclass(frozen=True)
class Closure:
    """Everything that some entries reach.

    digest:
        A digest of what the definitions do.
    definitions:
        The definitions, as ``module:name``.
    files:
        The files that hold the definitions or that importing them runs, each with the strings and names that
        its reached code mentions.
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
        The folder of each package whose modules are followed; an import of any other module counts by its
        name.
    stop:
        Modules that are not followed although they lie in a root, with all modules below them. What is taken
        from them counts by its name, whichever module defines it.
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
        self._roots = {prefix: folder.resolve() for prefix, folder in roots.items()}
        self._stop = stop
        self._modules: dict[str, Module | None] = {}
        self._files: dict[Path, set[str]] = {}
        self._mentions: dict[str, set[str]] = {}
        self._folders: dict[Path, bool] = {}
        self._touched: set[str] = set()
        self._elsewhere: set[str] = set()
        self._numbers: dict[_Target, int] = {}
        self._pending: list[_Target] = []
        self._facts = Facts()
        self._targets: dict[tuple[str, tuple[str, ...]], _Target] = {}
        self._written: list[list[object]] = []

    def enter(self, file: Path, name: str, given: Collection[str]) -> object:
        """Start at a top-level definition of a file, or at a class's methods. Return its number, and for a
        function the index and name of each parameter that callers pass by keyword."""
        module = self._module(self._name_of(file))
        defined = name.removesuffix(f".{METHODS}")
        if module is None or defined not in module.bindings:
            raise LookupError(f"{file} defines no '{defined}' at its top level.")
        if defined != name and not any(map(_is_class, module.bindings[defined])):
            raise LookupError(f"'{defined}' of {file} is no class that is defined there.")
        self._touch(module.name)
        if defined != name:
            return self._number(_Target("methods", module.name, defined))
        target = self._resolved(module, (defined,))
        arguments = self._arguments(target)
        named = [] if arguments is None else [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        alone = set() if arguments is None else {one.arg for one in arguments.kwonlyargs}
        places = [[place, one.arg] for place, one in enumerate(named) if one.arg in alone.union(given)]
        return [self._token(target), sorted(places, key=lambda each: str(each[1]))]

    def finish(self, entries: list[object]) -> Closure:
        """Follow everything that was reached until nothing new is, and return the closure."""
        acted: set[str] = set()
        while True:
            while self._pending:
                self._define(self._pending.pop(0))
            acting = [
                module
                for name in self._touched - acted
                if (module := self._module(name)) is not None and module.effects
            ]
            acted |= self._touched
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
            [naming.of(one) if isinstance(one, Attribute | Given | NamedParameter) else one for one in line]
            for line in self._written
        ]
        return Closure(
            digest=digest_of([entries, labels, filled]),
            definitions=tuple(sorted({f"{one.module}:{one.name}" for one in self._numbers if one.name})),
            files={file: frozenset(mentions) for file, mentions in self._files.items()},
            elsewhere=frozenset(self._elsewhere),
        )

    # Definitions.

    def _define(self, target: _Target) -> None:
        """Write the statements that bind a name, or all names of a module."""
        module = self._module(target.module)
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
            self._mentions[module.name] |= form.texts
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
            case forms.Parameter(name=name, method=method, function=function):
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
            self._mentions[module.name].update([*target.name.split("."), *target.rest])

    def _token(self, target: _Target) -> object:
        return self._tokens(target)[0]

    def _tokens(self, target: _Target) -> list[object]:
        """Return what represents a name in the digest: the number of a definition or the name itself, then
        the attributes."""
        bare = target._replace(rest=())
        owner = (target.module, target.name) if self._class_of(target) else None
        rest: list[object] = []
        for place, name in enumerate(target.rest):
            of_class = owner if not place else None
            rest.append(Attribute(of_class, name, binds=False) if forms.is_private(name) else name)
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
        module = self._module(target.module)
        statements = module.bindings[target.name] if module else []
        found = statements[0] if len(statements) == 1 else None
        return found if isinstance(found, ast.ClassDef) else None

    def _arguments(self, target: _Target) -> ast.arguments | None:
        """Return the parameters of the function that a name refers to, None for anything else."""
        if target.kind != "definition" or target.rest:
            return None
        module = self._module(target.module)
        statements = module.bindings[target.name] if module else []
        found = statements[0] if len(statements) == 1 else None
        return found.args if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else None

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
        place = None if arguments is None or hole.name is None else forms.place_of(hole.name, arguments)
        return Given(hole.name, "anywhere") if place is None else place

    def _given_class(self, module: Module, made: ast.ClassDef, name: str | None) -> object:
        """Return what represents a keyword argument of a call of a class. A field keeps its name."""
        for method in made.body:
            if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "__new__"):
                place = None if name is None else forms.place_of(name, method.args)
                return Given(name, "anywhere") if place is None else place
        for base in made.bases:
            names = chain(base)
            target = None if names is None else self._resolved(module, names)
            above = None if target is None else self._class_of(target)
            if target is not None and above is not None:
                of_base = self._module(target.module)
                assert of_base is not None, "a class that is found has been read"
                return self._given_class(of_base, above, name)
        return Given(name, "shown")

    # Modules.

    def _resolved(self, module: Module, names: tuple[str, ...]) -> _Target:
        """Return what a module-level name refers to, with the attributes accessed on it."""
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
        """Return what an imported name refers to, with the attributes accessed on it."""
        self._touch_imported(module, imported)
        (alias,) = imported.names
        if isinstance(imported, ast.Import):
            return self._of_module(alias.name if alias.asname else alias.name.partition(".")[0], attributes)
        base = module.absolute(imported.module or "", imported.level)
        if alias.name == "*":
            return self._of_module(base, ())
        if base == module.name and self._is_module(f"{base}.{alias.name}"):
            # A package imports its own submodule: the name is bound by this import itself.
            return self._of_module(f"{base}.{alias.name}", attributes)
        return self._of_module(base, (alias.name, *attributes))

    def _of_module(self, name: str, attributes: tuple[str, ...]) -> _Target:  # noqa: PLR0911  # a case a kind of module
        """Return what ``name.attribute.attribute`` refers to: the whole module where no definition is
        named."""
        self._touch(name)
        module = self._module(name)
        if attributes and module and attributes[0] in module.bindings:
            return self._resolved(module, attributes)
        if attributes and self._is_module(f"{name}.{attributes[0]}"):
            return self._of_module(f"{name}.{attributes[0]}", attributes[1:])
        if attributes and self._is_stopped(f"{name}.{attributes[0]}") and not self._is_stopped(name):
            return self._of_module(f"{name}.{attributes[0]}", attributes[1:])
        if module:
            return _Target("module", name, "", attributes)
        if self._is_stopped(name):
            if attributes and self._exists(f"{name}.{attributes[0]}"):
                return self._of_module(f"{name}.{attributes[0]}", attributes[1:])
            return _Target("stopped", name, attributes[0] if attributes else "", attributes[1:])
        return _Target("elsewhere", "", ".".join([name, *attributes]))

    def _name_of(self, file: Path) -> str:
        """Return the module name of a file, by the innermost root that holds it."""
        resolved = file.resolve()
        found = [
            (folder, prefix) for prefix, folder in self._roots.items() if resolved.is_relative_to(folder)
        ]
        if not found:
            raise LookupError(f"{file} lies in none of the folders whose sources are followed.")
        folder, prefix = max(found, key=lambda root: len(root[0].parts))
        parts = resolved.relative_to(folder).with_suffix("").parts
        return ".".join([prefix, *parts]).removesuffix(".__init__")

    def _path(self, name: str) -> Path | None:
        """Return the path of a module's source without its suffix, None for a module that is not followed."""
        return None if self._is_stopped(name) else self._place(name)

    def _place(self, name: str) -> Path | None:
        roots = [prefix for prefix in self._roots if _below(name, prefix)]
        if not roots:
            return None
        prefix = max(roots, key=len)
        return self._roots[prefix].joinpath(*name[len(prefix) :].split(".")[1:])

    def _exists(self, name: str) -> bool:
        """Whether a module of that name exists, followed or not."""
        path = self._place(name)
        return path is not None and (self._is_folder(path) or path.with_suffix(".py").is_file())

    def _is_stopped(self, name: str) -> bool:
        return any(_below(name, module) for module in self._stop)

    def _is_module(self, name: str) -> bool:
        path = self._path(name)
        if path is None or not self._is_folder(path.parent):  # its parent is no package
            return False
        return self._is_folder(path) or self._module(name) is not None

    def _is_folder(self, path: Path) -> bool:
        if path not in self._folders:
            self._folders[path] = path.is_dir()
        return self._folders[path]

    def _module(self, name: str) -> Module | None:
        """Return the module of that name, read once; None if it is not followed or has no file."""
        if name not in self._modules:
            path = self._path(name)
            files = [path / "__init__.py", path.parent / f"{path.name}.py"] if path else []
            file = next((one for one in files if one.is_file()), None)
            self._modules[name] = None if file is None else Module.read(name, file)
            if file is not None:
                self._files[file] = self._mentions[name] = set()
        return self._modules[name]

    def _touch(self, name: str) -> None:
        """Count everything that importing a module runs: its packages, the module itself, and their imports.
        Its definitions count only where something reaches them."""
        if name in self._touched:
            return
        package = name.rpartition(".")[0]
        if package:
            self._touch(package)
        self._touched.add(name)
        module = self._module(name)
        if module is not None:
            for imported in module.imports:
                self._touch_imported(module, imported)
        elif not package and name not in self._roots:
            self._elsewhere.add(name)

    def _touch_imported(self, module: Module, imported: Import) -> None:
        (alias,) = imported.names
        if isinstance(imported, ast.Import):
            self._touch(alias.name)
        else:
            base = module.absolute(imported.module or "", imported.level)
            self._touch(f"{base}.{alias.name}" if self._is_module(f"{base}.{alias.name}") else base)


def _below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _is_class(statement: ast.stmt) -> bool:
    """Whether a statement defines a class, at least in one of its branches."""
    return any(isinstance(node, ast.ClassDef) for node in scope([statement]))
