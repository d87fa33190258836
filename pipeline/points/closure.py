"""What of some Python source decides what a function does: the definitions that it reaches.

The source is read as syntax trees and never imported. From an entry, every name that its definition mentions
is followed, through imports too, as far as the modules lie in the roots. Importing runs a module, so what a
module does at its top level beside defining names counts for all that come from it or import it.

In doubt a definition counts. What no reader of the text can see does not: a module whose name is computed, an
attribute set from elsewhere, what a decorator registers.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from pipeline.points.mentions import Mentions, chain
from pipeline.points.syntax import EFFECTS, Import, Module, imports_in, members, plain, scope

METHODS = "*"
"""Stands for a name in ``Class.name`` where all of a class but its fields is meant."""


def closure(
    entries: Sequence[tuple[Path, str]], roots: Mapping[str, Path], stop: Sequence[str] = ()
) -> dict[str, str]:
    """Every definition that the entries reach, as ``{"module:name": digest}``.

    entries:
        Files and the names of top-level definitions in them. ``Class.*`` is a class without its fields: its
        methods and all else in its body, each counted as ``module:Class.method``, its decorators, and its
        bases likewise where they are classes in a root. A method that names its own class reaches all of it:
        what it makes has the fields' defaults.
    roots:
        The folder of each package whose modules are followed; imports of other modules count as written.
    stop:
        Modules, with all below them, that are not followed although they lie in a root.

    Raises LookupError with a sentence for an entry in no root or without such a definition or class, and
    SyntaxError with the file's name for a file that is not Python.
    """
    walk = _Walk(roots, stop)
    for file, name in entries:
        walk.enter(file, name)
    return walk.finish()


def digest_of(definitions: Mapping[str, str]) -> str:
    """One digest, of 16 hexadecimal digits, for all of some definitions."""
    return _digest(definitions)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# Many closures reach the same definitions, of modules that are read once.
_imports_in = cache(imports_in)


@cache
def _digest_of_statements(statements: tuple[ast.AST, ...]) -> str:
    return _digest(plain(list(statements)))


@cache
def _mentions(node: ast.AST, lazy_annotations: bool) -> Mentions:
    found = Mentions(lazy_annotations)
    found.visit(node)
    return found


class _Walk:
    """One closure while it grows."""

    def __init__(self, roots: Mapping[str, Path], stop: Sequence[str]) -> None:
        self._roots = {prefix: folder.resolve() for prefix, folder in roots.items()}
        self._stop = stop
        self._definitions: dict[str, str] = {}
        self._modules: dict[str, Module | None] = {}
        self._folders: dict[Path, bool] = {}
        self._touched: set[str] = set()
        self._followed: set[int] = set()
        self._seen: set[tuple[str, ...]] = set()
        self._pending: list[tuple[Module, str, tuple[str, ...]]] = []

    def enter(self, file: Path, name: str) -> None:
        """Begin at a top-level definition of a file, or at a class's methods."""
        module = self._module(self._name_of(file))
        defined = name.removesuffix(f".{METHODS}")
        if module is None or defined not in module.bindings:
            raise LookupError(f"{file} defines no '{defined}' at its top level.")
        if defined != name and not any(map(_is_class, module.bindings[defined])):
            raise LookupError(f"'{defined}' of {file} is no class that is defined there.")
        self._touch(module.name)
        self._reach_definition(module, defined, () if defined == name else (METHODS,))

    def finish(self) -> dict[str, str]:
        """Follow all that was reached until nothing new is."""
        while self._pending:
            module, name, attributes = self._pending.pop()
            statements = module.bindings[name]
            if attributes == (METHODS,) and len(statements) == 1 and isinstance(statements[0], ast.ClassDef):
                self._count_methods(module, statements[0])
                continue
            self._count(module, name, statements)
            for statement in statements:
                for imported in _imports_in(statement).get(name, []):
                    self._import(module, imported, attributes)
                self._follow(module, statement)
        return dict(sorted(self._definitions.items()))

    def _count(self, module: Module, name: str, statements: Sequence[ast.AST]) -> None:
        self._definitions[f"{module.name}:{name}"] = _digest_of_statements(tuple(statements))

    def _count_methods(self, module: Module, definition: ast.ClassDef) -> None:
        """Count a class without its fields, and reach what it mentions and its bases' methods."""
        around = [*definition.decorator_list, *definition.keywords]
        parts = [definition.bases, definition.decorator_list, definition.keywords]
        self._definitions[f"{module.name}:{definition.name}.{METHODS}"] = _digest(plain(parts))
        for name, statements in members(definition).items():
            self._count(module, f"{definition.name}.{name}", statements)
            around += statements
        for base in definition.bases:
            generic, arguments = (base.value, [base.slice]) if isinstance(base, ast.Subscript) else (base, [])
            names = chain(generic)
            if names is None:
                around.append(base)
            else:
                around += arguments
                self._reach_definition(module, names[0], (*names[1:], METHODS))
        for node in around:
            self._follow(module, node)

    def _name_of(self, file: Path) -> str:
        """The module that a file is, by the root that lies nearest to it."""
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
        """Where a module's source is, without its suffix; None for a module that is not followed."""
        roots = [prefix for prefix in self._roots if _below(name, prefix)]
        if self._stopped(name) or not roots:
            return None
        prefix = max(roots, key=len)
        return self._roots[prefix].joinpath(*name[len(prefix) :].split(".")[1:])

    def _stopped(self, name: str) -> bool:
        return any(_below(name, module) for module in self._stop)

    def _is_module(self, name: str) -> bool:
        path = self._path(name)
        if path is None or not self._is_folder(path.parent):  # of a file that is no package
            return False
        return self._is_folder(path) or self._module(name) is not None

    def _is_folder(self, path: Path) -> bool:
        if path not in self._folders:
            self._folders[path] = path.is_dir()
        return self._folders[path]

    def _module(self, name: str) -> Module | None:
        """The module of that name, read once; None where it is not followed or has no file."""
        if name not in self._modules:
            path = self._path(name)
            files = [path / "__init__.py", path.parent / f"{path.name}.py"] if path else []
            self._modules[name] = next((Module.read(name, file) for file in files if file.is_file()), None)
        return self._modules[name]

    def _touch(self, name: str) -> None:
        """Count what importing a module runs: its packages, itself, and what these import, without the
        definitions that nobody asked for."""
        package = name.rpartition(".")[0]
        if package and package not in self._touched:
            self._touch(package)
        module = self._module(name)
        if module is None or name in self._touched:
            return
        self._touched.add(name)
        if module.effects:
            self._count(module, EFFECTS, module.effects)
        for imported in module.imports:
            self._touch_imported(module, imported)
        for statement in module.effects:
            self._follow(module, statement)

    def _touch_imported(self, module: Module, imported: Import) -> None:
        (alias,) = imported.names
        if isinstance(imported, ast.Import):
            self._touch(alias.name)
        else:
            base = module.absolute(imported.module or "", imported.level)
            self._touch(f"{base}.{alias.name}" if self._is_module(f"{base}.{alias.name}") else base)

    def _follow(self, module: Module, node: ast.AST) -> None:
        """Reach what a statement, or a part of one, mentions."""
        if id(node) in self._followed:
            return
        self._followed.add(id(node))
        imports = _imports_in(node)
        for imported in (each for group in imports.values() for each in group):
            self._touch_imported(module, imported)
        for imported in imports.get("*", []):
            self._import(module, imported, ())
        mentions = _mentions(node, module.lazy_annotations)
        for name, *attributes in mentions.chains:
            for imported in imports.get(name, []):
                self._import(module, imported, tuple(attributes))
            self._reach_definition(module, name, tuple(attributes))
        for name in mentions.modules:
            self._reach(module.absolute(name.lstrip("."), len(name) - len(name.lstrip("."))), ())

    def _import(self, module: Module, imported: Import, attributes: tuple[str, ...]) -> None:
        """Reach what is taken from an imported name."""
        (alias,) = imported.names
        if isinstance(imported, ast.Import):
            self._reach(alias.name if alias.asname else alias.name.partition(".")[0], attributes)
            return
        base = module.absolute(imported.module or "", imported.level)
        if alias.name == "*":
            self._reach(base, ())
        elif base == module.name and self._is_module(f"{base}.{alias.name}"):
            # A package that imports a module of its own: the name it binds is this very import.
            self._reach(f"{base}.{alias.name}", attributes)
        else:
            self._reach(base, (alias.name, *attributes))

    def _reach(self, name: str, attributes: tuple[str, ...]) -> None:
        """Reach ``name.attribute.attribute``, or all of the module where no definition is named."""
        self._touch(name)
        module = self._module(name)
        if attributes and module and attributes[0] in module.bindings:
            self._reach_definition(module, attributes[0], attributes[1:])
        elif attributes and self._is_module(f"{name}.{attributes[0]}"):
            self._reach(f"{name}.{attributes[0]}", attributes[1:])
        elif module and not (attributes and self._stopped(f"{name}.{attributes[0]}")):
            for definition in module.bindings:
                self._reach_definition(module, definition, ())

    def _reach_definition(self, module: Module, name: str, attributes: tuple[str, ...]) -> None:
        step = (module.name, name, *attributes)
        if name in module.bindings and step not in self._seen:
            self._seen.add(step)
            self._pending.append((module, name, attributes))


def _below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _is_class(statement: ast.stmt) -> bool:
    """Whether a statement defines a class, in one of its branches at least."""
    return any(isinstance(node, ast.ClassDef) for node in scope([statement]))
