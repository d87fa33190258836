"""Rewrites a tree of Python source by rule: what no digest may see, everywhere at once, and single faults."""

from __future__ import annotations

import ast
import builtins
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

Trees = dict[str, ast.Module]
"""Modules by their path below the root."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
BUILTINS = frozenset(dir(builtins))


def read(root: Path, wanted: Collection[str]) -> Trees:
    """Every module below a folder, empty where it is none of those that are wanted."""
    names = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.py"))]
    return {name: ast.parse((root / name).read_bytes() if name in wanted else b"") for name in names}


def write(trees: Trees, root: Path) -> Path:
    """The modules as files below a folder."""
    for name, tree in trees.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")
    return root


def nodes(trees: Trees) -> Iterator[ast.AST]:
    """Every node of every module."""
    for tree in trees.values():
        yield from ast.walk(tree)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    """All of a function's."""
    given = function.args
    rest = filter(None, [given.vararg, given.kwarg])
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *rest]


def rename_locals(trees: Trees, kept: Iterable[str]) -> None:
    """Every local and parameter gets another name, but those whose names are given by keyword somewhere or
    are to be kept, and those that a module or Python has, too."""
    by_keyword = {node.arg for node in nodes(trees) if isinstance(node, ast.keyword)} | {*kept}
    for tree in trees.values():
        of_module = set(names_of(tree)) | {
            name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
        }
        for top in tree.body:
            for function in functions_at(top):
                _rename_in(function, of_module | BUILTINS, by_keyword)


def functions_at(top: ast.stmt) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """A function of a module, or the methods of its class."""
    if isinstance(top, FUNCTIONS):
        return [top]
    return [one for one in top.body if isinstance(one, FUNCTIONS)] if isinstance(top, ast.ClassDef) else []


def names_of(tree: ast.Module) -> Iterator[str]:
    """What a module binds at its top level, in branches too."""
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
                continue
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Import() | ast.ImportFrom():
                yield from ((one.asname or one.name).partition(".")[0] for one in node.names)
        waiting += ast.iter_child_nodes(node)


def _rename_in(
    function: ast.FunctionDef | ast.AsyncFunctionDef, never: set[str] | frozenset[str], by_keyword: set[str]
) -> None:
    inside = [node for one in function.body for node in ast.walk(one)]
    classes = {name for node in inside if isinstance(node, ast.ClassDef) for name in _members(node)}
    nested = [node for node in inside if isinstance(node, (*FUNCTIONS, ast.Lambda))]
    given = {one.arg for each in (function, *nested) for one in parameters(each)}
    bound = given - by_keyword
    for node in inside:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
            case ast.FunctionDef(name=name):
                bound.add(name)
    bound -= {*never, *classes} | (given & by_keyword)
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in inside
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    mapping = {name: f"renamed_{name}" for name in bound - imported}
    for node in [*inside, *(argument for argument in parameters(function))]:
        match node:
            case ast.Name(id=name) if name in mapping:
                node.id = mapping[name]
            case ast.arg(arg=name) if name in mapping:
                node.arg = mapping[name]
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                node.name = mapping.get(name, name)
            case ast.FunctionDef(name=name) if name in mapping:
                node.name = mapping[name]
            case ast.Nonlocal(names=names):
                node.names = [mapping.get(name, name) for name in names]


def _members(node: ast.ClassDef) -> Iterator[str]:
    for one in node.body:
        if isinstance(one, DEFINITIONS):
            yield one.name
        elif isinstance(one, ast.Assign | ast.AnnAssign):
            yield from (each.id for each in ast.walk(one) if isinstance(each, ast.Name))


def is_private(name: str) -> bool:
    """Whether a name is one that nobody else shall use."""
    return name.startswith("_") and not name.endswith("_")


def rename_privates(trees: Trees) -> set[str]:
    """Every private function, class, constant, method and attribute of ours gets another name: which."""
    bound: set[str] = set()
    for node in nodes(trees):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                bound.add(name)
    mapping = {name: f"_renamed{name}" for name in bound if is_private(name)}
    for node in nodes(trees):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.alias():
                node.name = mapping.get(node.name, node.name)
            case ast.Attribute():
                node.attr = mapping.get(node.attr, node.attr)
            case ast.Name():
                node.id = mapping.get(node.id, node.id)
    return set(mapping)


def rename_modules(trees: Trees, package: str) -> Callable[[str], str]:
    """Every module gets another name; what becomes of a dotted one or a path."""
    modules = {name.removesuffix(".py").replace("/", ".") for name in trees}
    modules = {f"{package}.{name}".removesuffix(".__init__") for name in modules}

    def renamed(dotted: str) -> str:
        parts = dotted.split(".")
        found = [parts[0]]
        for place, part in enumerate(parts[1:], 2):
            found.append(f"renamed_{part}" if ".".join(parts[:place]) in modules else part)
        return ".".join(found)

    for path, tree in [*trees.items()]:
        here = f"{package}.{path.removesuffix('.py').replace('/', '.')}".split(".")[:-1]
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        if alias.name.partition(".")[0] == package and renamed(alias.name) != alias.name:
                            assert alias.asname, "`import a.b` binds what it is called by"
                        alias.name = renamed(alias.name) if alias.name.startswith(package) else alias.name
                case ast.ImportFrom(module=base, level=level, names=names):
                    around = here[: len(here) - level + 1] if level else []
                    whole = ".".join([*around, *([base] if base else [])])
                    if whole.partition(".")[0] != package:
                        continue
                    for alias in names:
                        if f"{whole}.{alias.name}" in modules:
                            alias.asname = alias.asname or alias.name
                            alias.name = renamed(f"{whole}.{alias.name}").rpartition(".")[2]
                    node.module, node.level = renamed(whole), 0
    for path in [*trees]:
        dotted = f"{package}.{path.removesuffix('.py').replace('/', '.')}"
        whole = renamed(dotted.removesuffix(".__init__")) + (
            ".__init__" if dotted.endswith("__init__") else ""
        )
        trees["/".join(whole.split(".")[1:]) + ".py"] = trees.pop(path)
    return renamed


def move_apart(trees: Trees, package: str) -> None:
    """Every function and class of a module's top level goes to a module of its own beside it."""
    for path, tree in [*trees.items()]:
        stem = path.removesuffix(".py").removesuffix("/__init__")
        if stem == "__init__":
            continue
        moved = [one for one in tree.body if isinstance(one, DEFINITIONS)]
        names = [one.name for one in moved]
        moved = [
            one for one in moved if names.count(one.name) == 1 and list(names_of(tree)).count(one.name) == 1
        ]
        imports = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
        here = f"{package}.{path.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        around = here.split(".") if path.endswith("__init__.py") else here.split(".")[:-1]
        for one in imports:  # from elsewhere they mean the same
            if isinstance(one, ast.ImportFrom) and one.level:
                one.module = ".".join(
                    [*around[: len(around) - one.level + 1], *([one.module] if one.module else [])]
                )
                one.level = 0
        rest = sorted(
            set(names_of(tree)) - {name for one in imports for name in names_of(ast.Module([one], []))}
        )
        for one in moved:
            place = f"{stem.rpartition('/')[0]}/moved_{stem.replace('/', '_')}_{one.name}".lstrip("/")
            others = [ast.alias(name) for name in rest if name != one.name]
            back = [ast.ImportFrom(here, others, 0)] if others else []
            trees[f"{place}.py"] = ast.parse(ast.unparse(ast.Module([*imports, *back, one], [])))
            dotted = f"{package}.{place.replace('/', '.')}"
            tree.body[tree.body.index(one)] = ast.ImportFrom(dotted, [ast.alias(one.name)], 0)


def reorder(trees: Trees) -> None:
    """The functions and classes of each module, and the methods of each class, in the opposite order."""
    for node in nodes(trees):
        if isinstance(node, ast.Module | ast.ClassDef):
            defined = [one for one in node.body if isinstance(one, DEFINITIONS)]
            names = [one.name for one in defined]
            defined = [one for one in defined if names.count(one.name) == 1]
            if isinstance(node, ast.ClassDef):
                defined = [one for one in defined if isinstance(one, FUNCTIONS)]
            places = [place for place, one in enumerate(node.body) if one in defined]
            for place, one in zip(places, reversed(defined), strict=True):
                node.body[place] = one


def reword(trees: Trees) -> None:
    """Every docstring, and every sentence that an exception, an assertion or a print says."""

    def changed(node: ast.AST) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.JoinedStr):
                one.values.insert(0, ast.Constant("reworded "))
                break
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and " " in one.value:
                one.value = f"reworded {one.value}"
                break

    for node in nodes(trees):
        match node:
            case ast.Raise(exc=ast.Call(args=[*args])):
                for one in args:
                    if not isinstance(one, ast.JoinedStr) or " " in ast.unparse(one).replace("{", " "):
                        changed(one)
            case ast.Assert(msg=ast.expr() as said):
                changed(said)
            case ast.Expr(value=ast.Constant(value=str(said)) as text):
                text.value = f"Other {said}"


def faults(tree: ast.Module, defined: set[str], seed: int) -> Iterator[tuple[str, Callable[[], ast.Module]]]:
    """Single faults in those definitions of a module, one of each: what it is, and the module that has it,
    which is whole again for the next."""
    draw = random.Random(seed)
    for top in tree.body:
        if not isinstance(top, DEFINITIONS) or top.name not in defined:
            continue
        inside = [*_deciding(top)]
        found: list[tuple[str, tuple[ast.AST, str, object]]] = []
        loads = [node for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        names = sorted({node.id for node in loads})
        for node in inside:
            match node:
                case ast.Constant(value=bool() | int() | float() as value):
                    found.append((f"{value} off by one", (node, "value", value + 1)))
                case ast.Constant(value=str(value)):
                    found.append((f"text {value!r}", (node, "value", f"{value}~")))
                case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() as op):
                    other = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
                    found.append((f"operator of {ast.unparse(node)}", (node, "op", other)))
                case ast.Compare(ops=[op]):
                    other = ast.LtE() if isinstance(op, ast.Lt) else ast.Lt()
                    found.append((f"comparison {ast.unparse(node)}", (node, "ops", [other])))
                case ast.Call(args=[first, second, *rest]) if ast.dump(first) != ast.dump(second):
                    swapped = [second, first, *rest]
                    found.append((f"arguments of {ast.unparse(node)}", (node, "args", swapped)))
                case ast.Attribute(attr=attr, ctx=ast.Load()):
                    found.append((f"attribute {ast.unparse(node)}", (node, "attr", f"{attr}_")))
                case ast.Name(id=name, ctx=ast.Load()) if len(names) > 1:
                    other = draw.choice([one for one in names if one != name])
                    found.append((f"{other} for {name}", (node, "id", other)))
        for what, (node, name, value) in draw.sample(found, min(1, len(found))):
            before = getattr(node, name)

            def plant(node: ast.AST = node, name: str = name, value: object = value) -> ast.Module:
                setattr(node, name, value)
                return tree

            yield what, plant
            setattr(node, name, before)


def _deciding(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that decide what code does: no annotation and nothing that is only said."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns") or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                continue
            if isinstance(one, ast.AST):
                yield from _deciding(one)
