"""Take a launcher of Triton kernels from another project's file, with all definitions that it reaches.

A launcher is a function with ``kernel[grid](...)``, or a ``torch.autograd.Function`` whose ``forward`` has
one. Tests and benchmarks of the file are left out. Nothing is imported or run here.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.judging.sources import parsed

NOT_FORWARD = re.compile(r"bwd|backward|test|bench|main|grad|profile|perf", re.IGNORECASE)
"""Names of functions that are not the forward launcher of a file."""

DEVICE = '_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"'


@dataclass(frozen=True)
class LauncherParameter:
    """A parameter of a launcher, with the source texts of its default and its annotation."""

    name: str
    default: str | None
    annotation: str


@dataclass(frozen=True)
class Launcher:
    """A launcher: the expression that is called, its parameters, and the code that defines it.

    ``names`` are the top-level names of the code. ``replaced`` are the lines whose queries of the GPU have
    another value without a GPU.
    """

    name: str
    called: str
    parameters: tuple[LauncherParameter, ...]
    code: str
    names: frozenset[str]
    replaced: tuple[int, ...]

    @property
    def is_positional(self) -> bool:
        """Whether arguments have no names, as for ``apply`` of a ``torch.autograd.Function``."""
        return self.called != self.name


def launcher(path: Path, wanted: str | None = None) -> Launcher:
    """Return the launcher of a file, or the one that is ``wanted``. Raises UserError, with file and line, for
    a file that can't be read, that has no launcher or several, and for an import that is not there."""
    file = SourceFile(path)
    node = file.chosen(wanted)
    function = _forward(node) if isinstance(node, ast.ClassDef) else node
    assert function is not None, "a class was chosen for its forward"
    taken = TakenCode()
    taken.take(file, node.name)
    imports = dict.fromkeys([*sorted(taken.future), "import torch", *taken.imports])
    if any("torch.distributed.tensor" in block for block in taken.blocks):
        imports["import torch.distributed.tensor"] = None  # files rely on another package's import of it
    return Launcher(
        name=node.name,
        called=f"{node.name}.apply" if isinstance(node, ast.ClassDef) else node.name,
        parameters=tuple(_parameters(function))[isinstance(node, ast.ClassDef) :],
        code="\n".join(imports) + "\n\n" + "\n\n\n".join([DEVICE, *taken.blocks]) + "\n",
        names=frozenset(taken.names),
        replaced=tuple(taken.replaced),
    )


class SourceFile:
    """A parsed file and the top-level statements that bind its names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = parsed(path)
        self.source = path.read_text()
        self.bound: dict[str, list[ast.stmt]] = {}
        for node in self.tree.body:
            for name in _binds(node):
                self.bound.setdefault(name, []).append(node)

    def chosen(self, wanted: str | None) -> ast.FunctionDef | ast.ClassDef:
        """Return the definition of the launcher. Raises UserError if there is none, or if several fit."""
        defined = (one for one in self.tree.body if isinstance(one, (ast.FunctionDef, ast.ClassDef)))
        found = {node.name: node for node in defined if self._launches(node, set())}
        if wanted is not None:
            if wanted not in found:
                raise unknown(f"launcher of {self.path.name}", wanted, found)
            return found[wanted]
        fit = {name: node for name, node in found.items() if not NOT_FORWARD.search(name)}
        if not fit:
            raise UserError(
                f"{self.path}:1: it has no launcher: outside of @triton.jit no function has kernel[grid](…)."
            )
        classes = [node for node in fit.values() if isinstance(node, ast.ClassDef)]
        inner = {name for node in fit.values() for name in _uses(node) if name != node.name}
        outer = [node for name, node in fit.items() if name not in inner]
        public = [node for node in outer if not node.name.startswith("_")]
        for some in (classes, outer, public):
            if len(some) == 1:
                return some[0]
        example = f"from={self.path}:{next(iter(fit))}"
        raise UserError(f"{self.path} has several launchers, {', '.join(fit)}: write one, as in {example}.")

    def _launches(self, node: ast.AST, seen: set[str]) -> bool:
        """Whether a function or a ``forward`` launches a kernel, itself or by functions that it calls."""
        if isinstance(node, ast.ClassDef):
            forward = _forward(node)
            return forward is not None and self._launches(forward, seen | {node.name})
        if not isinstance(node, ast.FunctionDef) or _is_jitted(node) or node.name in seen:
            return False
        if any(isinstance(one, ast.Call) and isinstance(one.func, ast.Subscript) for one in ast.walk(node)):
            return True
        called = {one for name in _uses(node) for one in self.bound.get(name, ())}
        return any(self._launches(one, seen | {node.name}) for one in called)

    def imported(self, node: ast.ImportFrom) -> Path | None:
        """Return the file of a module of this file's own package, from which names are imported; None if the
        module belongs to another package."""
        parts = (node.module or "").split(".") if node.module else []
        if node.level:
            folder = self.path.resolve().parent
            for _ in range(node.level - 1):
                folder = folder.parent
        else:
            tops = [one for one in self.path.resolve().parents if one.name == parts[0]]
            if not tops:
                return None
            folder, parts = tops[0], parts[1:]
        place = folder.joinpath(*parts)
        return next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)


@dataclass
class TakenCode:
    """The code that was taken so far, in the order in which it must stand."""

    imports: list[str] = field(default_factory=list)
    future: set[str] = field(default_factory=set)
    blocks: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    replaced: list[int] = field(default_factory=list)
    _seen: set[tuple[Path, int, str]] = field(default_factory=set)

    def take(self, file: SourceFile, *wanted: str) -> None:
        """Take the definitions of names, and before them all that these use."""
        self.future |= {
            ast.unparse(one)
            for one in file.tree.body
            if isinstance(one, ast.ImportFrom) and one.module == "__future__"
        }
        reached: set[ast.stmt] = set()
        used = set(wanted)
        left = [node for name in wanted for node in file.bound.get(name, ())]
        while left:
            node = left.pop()
            if node not in reached:
                reached.add(node)
                uses = _uses(node)
                used |= uses
                left += [one for name in uses for one in file.bound.get(name, ())]
        for node in sorted(reached, key=lambda one: one.lineno):
            if isinstance(node, ast.ImportFrom):
                names = [one for one in node.names if (one.asname or one.name) in used]
                self._add_import(file, node, [one for one in names if self._is_new(file, node, one.name)])
            elif self._is_new(file, node):
                self._add(file, node)

    def _is_new(self, file: SourceFile, node: ast.stmt, name: str = "") -> bool:
        """Whether a statement, or a name that it imports, is not taken yet; from now on it is."""
        key = (file.path, node.lineno, name)
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def _add(self, file: SourceFile, node: ast.stmt) -> None:
        self.names |= _binds(node)
        if isinstance(node, ast.Import):
            for one in node.names:
                _require(file.path, node, one.name)
            self.imports.append(ast.unparse(node))
            return
        code, replaced = _portable(file.source, node)
        self.replaced += replaced
        self.blocks.append(code)

    def _add_import(self, file: SourceFile, node: ast.ImportFrom, names: list[ast.alias]) -> None:
        if node.module == "__future__" or not names:
            return
        self.names |= {one.asname or one.name for one in names}
        place = file.imported(node)
        if place is None:
            _require(file.path, node, node.module or "", [one.name for one in names])
            self.imports.append(ast.unparse(ast.ImportFrom(node.module, names, 0)))
            return
        other = SourceFile(place)
        for one in names:
            if one.name not in other.bound:
                raise UserError(
                    f"{file.path}:{node.lineno}: {one.name} is not defined in {place}: a whole module can't "
                    "be taken; copy the definitions that the launcher needs into the file."
                )
            self.take(other, one.name)
            if one.asname is not None:
                self.blocks.append(f"{one.asname} = {one.name}")


def _require(path: Path, node: ast.stmt, module: str, names: list[str] | None = None) -> None:
    """Raise UserError for an import of a package that is neither installed nor around the file."""
    top = module.partition(".")[0]
    is_relative = isinstance(node, ast.ImportFrom) and node.level > 0
    if is_relative or importlib.util.find_spec(top) is None:
        what = f"{', '.join(names)} from {module or 'its package'}" if names else module
        raise UserError(
            f"{path}:{node.lineno}: it imports {what}, which is not there: install {top or 'its package'}, "
            "or name the file where it lies in its own package."
        )


def _binds(node: ast.AST) -> set[str]:
    """Return the names that a top-level statement binds, in blocks such as ``if`` and ``try``, too."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {one.asname or one.name.partition(".")[0] for one in node.names}
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    if isinstance(node, (ast.If, ast.Try, ast.With, ast.For)):
        return {name for inner in ast.iter_child_nodes(node) for name in _binds(inner)}
    if isinstance(node, ast.ExceptHandler):
        return {name for inner in node.body for name in _binds(inner)}
    return set()


def _uses(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _is_jitted(node: ast.FunctionDef) -> bool:
    return any(re.search(r"\bjit\b", ast.unparse(one)) for one in node.decorator_list)


def _forward(node: ast.ClassDef) -> ast.FunctionDef | None:
    is_function = any("Function" in ast.unparse(base) for base in node.bases)
    methods = (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "forward")
    return next(methods, None) if is_function else None


def _parameters(function: ast.FunctionDef) -> Iterator[LauncherParameter]:
    given = function.args
    places = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(places) - len(given.defaults))
    defaults += [*given.defaults, *given.kw_defaults]
    for one, default in zip([*places, *given.kwonlyargs], defaults, strict=True):
        text = None if default is None else ast.unparse(default)
        yield LauncherParameter(one.arg, text, "" if one.annotation is None else ast.unparse(one.annotation))


def _portable(source: str, node: ast.stmt) -> tuple[str, list[int]]:
    """Return the code of a statement, and the lines where it queries the GPU. These queries have a value
    without a GPU, too, so that Triton's interpreter can verify the kernel."""
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits: list[tuple[int, int, str, int]] = []
    if not (isinstance(node, ast.FunctionDef) and _is_jitted(node)):
        for one, code in _queries(node):
            begin = starts[one.lineno - 1] + one.col_offset
            end = starts[(one.end_lineno or one.lineno) - 1] + (one.end_col_offset or 0)
            edits.append((begin, end, code, one.lineno))
    text = b"".join(lines)
    begin, end = starts[first - 1], starts[node.end_lineno or first]
    for at, to, code, _ in sorted(edits, reverse=True):
        text = text[:at] + code.encode() + text[to:]
        end += len(code.encode()) - (to - at)
    return text[begin:end].decode().rstrip(), [line for *_, line in edits]


def _queries(node: ast.stmt) -> Iterator[tuple[ast.expr, str]]:
    """Yield the outermost expressions that need a GPU, with their replacements."""
    if isinstance(node, ast.Assign) and re.search(r"torch\.cuda\.|driver\.active", ast.unparse(node.value)):
        value = ast.unparse(node.value)
        if "get_active_torch_device" in value:
            yield node.value, "torch.device(_DEVICE)"
        else:
            count = re.search(r"multi_?processor_count", value)
            yield node.value, f'({value}) if _DEVICE == "cuda" else {2 if count else None}'
        return
    left: list[ast.AST] = [node]
    while left:
        one = left.pop()
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            if re.fullmatch(r"cuda(:\d+)?", one.value):
                yield one, "_DEVICE"
        elif isinstance(one, ast.Attribute) and one.attr == "is_cuda":
            yield one, f'({ast.unparse(one)} or _DEVICE == "cpu")'
        elif isinstance(one, ast.Attribute) and one.attr == "multi_processor_count":
            yield one, f'({ast.unparse(one)} if _DEVICE == "cuda" else 2)'
        else:
            left += ast.iter_child_nodes(one)
