"""Single faults in a tree of Python source, planted by rule."""

import ast
import random
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

Trees = dict[str, ast.Module]
"""Modules by their path below the root."""

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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
