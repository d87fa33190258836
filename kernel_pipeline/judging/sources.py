"""Read, change and import the Python files of problems and submissions."""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .formats import SubmissionFile

if TYPE_CHECKING:
    import torch


def text_of(path: Path) -> str:
    """Read a file. Raises UserError, with the line, if it can't be read or is not text."""
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        raise UserError(f"{path}:{line}: it is not text in UTF-8.") from error


def parsed(path: Path) -> ast.Module:
    """Parse a file. Raises UserError, with the line, if it can't be read or is not Python."""
    text = text_of(path)
    try:
        return ast.parse(text, str(path))
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno or 1}: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}:1: it can't be parsed as Python: {error}.") from error


def submission(path: Path, name: str, tree: ast.Module) -> SubmissionFile:
    """Return a submission of a parsed file, which defines ``name``."""
    modules = {name.partition(".")[0] for name in imports_of(tree)}
    words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    is_cuda = bool({"load_inline", "load"} & words) and "__global__" in path.read_text()
    needs_gpu = is_cuda or bool({"cupy", "cutlass"} & modules)
    return SubmissionFile(path, name, is_triton="triton" in modules, needs_gpu=needs_gpu)


def separated(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, with ``height, width = 32, 64`` as an assignment of a constant to each name."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if (
                len(names) == len(values)
                and all(isinstance(one, ast.Name) for one in names)
                and all(isinstance(one, ast.Constant) for one in values)
            ):
                for name, value in zip(names, values, strict=True):
                    yield ast.copy_location(ast.Assign([name], value), node)
            case _:
                yield node


class Resized(ast.NodeTransformer):
    """Replaces the sizes in a module's code, and the names of GPUs by the device's name."""

    def __init__(self, sizes: Mapping[str, int], device: str) -> None:
        self.sizes = sizes
        self.device = device

    def module(self, tree: ast.Module) -> ast.Module:
        """Return the tree with all replacements. Line numbers stay the same."""
        tree.body = list(separated(tree.body))
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            chosen = [self.sizes[name] for name in names if name in self.sizes]
            if chosen and isinstance(node, (ast.Assign, ast.AnnAssign)):
                # ``height = width = 128`` is one size under two names.
                node.value = ast.copy_location(ast.Constant(chosen[0]), node)
        changed: ast.Module = tree if self.device == "cuda" else self.visit(tree)
        return ast.fix_missing_locations(changed)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        """Replace ``"cuda"`` and ``"cuda:0"``."""
        if isinstance(node.value, str) and re.fullmatch(r"cuda(:\d+)?", node.value):
            return ast.copy_location(ast.Constant(self.device), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace ``x.cuda()`` by ``x.to(device)``."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            to = ast.Attribute(node.func.value, "to", ast.Load())
            return ast.copy_location(ast.Call(to, [ast.Constant(self.device)], []), node)
        return node


def imported(path: Path, changed: Resized, key: str, builtins: Mapping[str, Any] | None = None) -> ModuleType:
    """Import a file with changed sizes and device, in a new module. ``key`` tells it from other imports of
    the file. Line numbers stay the same, so that tracebacks and ``inspect`` show the right lines."""
    name = f"_judged_{hashlib.sha256(f'{path} {key}'.encode()).hexdigest()[:12]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    if builtins is not None:
        module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    exec(compile(changed.module(parsed(path)), str(path), "exec"), module.__dict__)
    return module


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators and make a device the default device inside this context."""
    import torch

    before = random.getstate()
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
