"""The modules that a closure follows: their files, and the code that importing them runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from .syntax import Import, Module


class FollowedModules:
    """The modules in the roots but for those in ``stop``, each read once.

    ``files`` are the files that were read and ``mentions`` the strings and names that are reached in each
    module. ``touched`` are the modules whose import runs, and ``elsewhere`` those outside the roots.
    """

    def __init__(self, roots: Mapping[str, Path], stop: Sequence[str]) -> None:
        self._roots = {prefix: folder.resolve() for prefix, folder in roots.items()}
        self._stop = stop
        self._modules: dict[str, Module | None] = {}
        self._folders: dict[Path, bool] = {}
        self.files: dict[Path, set[str]] = {}
        self.mentions: dict[str, set[str]] = {}
        self.touched: set[str] = set()
        self.elsewhere: set[str] = set()

    def name_of(self, file: Path) -> str:
        """Return the module name of a file, by the innermost root that holds it."""
        resolved = file.resolve()
        found = [
            (folder, prefix) for prefix, folder in self._roots.items() if resolved.is_relative_to(folder)
        ]
        if not found:
            raise LookupError(f"{file} is outside of the folders that a key covers.")
        folder, prefix = max(found, key=lambda root: len(root[0].parts))
        parts = resolved.relative_to(folder).with_suffix("").parts
        return ".".join([prefix, *parts]).removesuffix(".__init__")

    def _path(self, name: str) -> Path | None:
        """Return the path of a module's source without its suffix, None for a module that is not followed."""
        return None if self.is_stopped(name) else self._place(name)

    def _place(self, name: str) -> Path | None:
        roots = [prefix for prefix in self._roots if _below(name, prefix)]
        if not roots:
            return None
        prefix = max(roots, key=len)
        return self._roots[prefix].joinpath(*name[len(prefix) :].split(".")[1:])

    def exists(self, name: str) -> bool:
        """Whether a module of that name exists, followed or not."""
        path = self._place(name)
        return path is not None and (self._is_folder(path) or path.with_suffix(".py").is_file())

    def is_stopped(self, name: str) -> bool:
        """Whether a module is not followed, although it may lie in a root."""
        return any(_below(name, module) for module in self._stop)

    def is_module(self, name: str) -> bool:
        """Whether a name is a module that is followed."""
        path = self._path(name)
        if path is None or not self._is_folder(path.parent):  # its parent is no package
            return False
        return self._is_folder(path) or self.read(name) is not None

    def _is_folder(self, path: Path) -> bool:
        if path not in self._folders:
            self._folders[path] = path.is_dir()
        return self._folders[path]

    def read(self, name: str) -> Module | None:
        """Return the module of that name, read once; None if it is not followed or has no file."""
        if name not in self._modules:
            path = self._path(name)
            files = [path / "__init__.py", path.parent / f"{path.name}.py"] if path else []
            file = next((one for one in files if one.is_file()), None)
            self._modules[name] = None if file is None else Module.read(name, file)
            if file is not None:
                self.files[file] = self.mentions[name] = set()
        return self._modules[name]

    def touch(self, name: str) -> None:
        """Add all code that importing a module runs: its packages, the module itself, and their imports. Its
        definitions are added only if other code uses them."""
        if name in self.touched:
            return
        package = name.rpartition(".")[0]
        if package:
            self.touch(package)
        self.touched.add(name)
        module = self.read(name)
        if module is not None:
            for imported in module.imports:
                self.touch_imported(module, imported)
        elif not package and name not in self._roots:
            self.elsewhere.add(name)

    def touch_imported(self, module: Module, imported: Import) -> None:
        """Add all code that an import statement of a module runs."""
        (alias,) = imported.names
        if isinstance(imported, ast.Import):
            self.touch(alias.name)
        else:
            base = module.absolute(imported.module or "", imported.level)
            self.touch(f"{base}.{alias.name}" if self.is_module(f"{base}.{alias.name}") else base)


def _below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
