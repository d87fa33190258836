"""Which edits of Python source change what a definition's closure says, and which don't."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.keys.closure import Closure, closure

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ROOT = Path(__file__).parents[3]
KERNELS = ROOT / "kernels"

SOURCES = {
    "__init__.py": "from .rows import exported\n",
    "rows.py": '''"""Rows."""
from __future__ import annotations
import math

WIDTH = 8
LIMITS: dict[str, int] = {}

def scaled(x):
    return x * WIDTH

def fits(problem: Problem):
    return problem.columns < 1024

def exported(x):
    return math.exp(x)

class Problem:
    columns: int = 1
''',
    "problem.py": '''"""Problems."""
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from kernel_pipeline.contract import one_of
from kernels.shapes import Based as Shared, Other, Part, padded

DTYPES = ("float32", "float16")
FACTOR = 2
DEPTH = 3

@dataclass(frozen=True)
class Matrix(Shared[Part]):
    """A matrix."""

    rows: int = DEPTH
    dtype: str = one_of(*DTYPES)
    unit: ClassVar[int] = 1
    names = ("x",)

    @property
    def shape(self) -> tuple[int, int]:
        """Of it."""
        return self.rows, padded(self.rows).real * FACTOR

    @property
    def halved(self) -> Matrix:
        return dataclasses.replace(self, rows=self.rows // 2)

class Maker:
    rows: int = 1

    def made(self):
        return Maker()

Alias = Matrix
if FACTOR:
    class Branched:
        rows: int = 1
''',
    "shapes.py": '''"""Shapes."""
WIDTH = 8
LIMIT = 5

class Part: ...

class Other: ...

class Based:
    columns: int = LIMIT

    def elements(self):
        return self.columns * WIDTH

def padded(x):
    return x
''',
    "whole.py": "A = 1\nB = 2\n",
    "flags.py": "import torch\n\ntorch.set_flush_denormal(True)\n",
    "softmax/__init__.py": "",
    "softmax/triton.py": '''"""Softmax."""
from __future__ import annotations
from typing import TYPE_CHECKING
import importlib
import triton
import triton.language as tl
import kernels.rows as rows
from kernels import exported, whole
from ..rows import scaled as scaled_rows

if TYPE_CHECKING:
    from kernels.rows import Problem

__all__ = ["softmax"]
LOWEST = -1.5
COUNT = 0
try:
    import quack
except ImportError:
    quack = None

@triton.jit
def body(x, BLOCK: tl.constexpr):
    """One row."""
    # A comment.
    return tl.exp(x + LOWEST)

def softmax(x, width=rows.WIDTH):
    """All rows."""
    from kernels.rows import fits
    kernel = body[(1,)]
    return kernel(x, "evict") if fits(x) else scaled_rows(exported(x), width)

def counted(x):
    return COUNT

def count():
    global COUNT
    COUNT += 1

def passed(x):
    return dir(whole)

def by_string():
    return importlib.import_module("kernels.whole")

def peer(x):
    return quack(x)

def shadow(counted, other):
    peer = [count for count in other]
    return (lambda softmax: softmax + counted)(peer)

kernel = (softmax, counted)
''',
}

TRITON, ROWS, INIT, WHOLE = "softmax/triton.py", "rows.py", "__init__.py", "whole.py"
PROBLEM, SHAPES = "problem.py", "shapes.py"


def planted(folder: Path, *edits: tuple[str, str, str]) -> dict[str, Path]:
    """The roots of the sources with each edit of a file, from one text to another, made once."""
    texts = dict(SOURCES)
    for file, old, new in edits:
        assert old in texts.setdefault(file, ""), old
        texts[file] = texts[file].replace(old, new, 1) if old else new + texts[file]
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return {"kernels": folder}


def reached(roots: Mapping[str, Path], name: str = "softmax") -> Closure:
    """The closure of a function of the Triton file, or of methods of a problem's class."""
    file = PROBLEM if name.endswith(".*") else TRITON
    return closure([(roots["kernels"] / file, name)], roots)


CHANGES = {
    "the body": ("softmax", TRITON, "if fits", "if not fits"),
    "a string": ("softmax", TRITON, '"evict"', '"evict_last"'),
    "what it calls by name": ("softmax", TRITON, "x + LOWEST", "x - LOWEST"),
    "a constant of the module": ("softmax", TRITON, "-1.5", "-1.25"),
    "a constexpr annotation": ("softmax", TRITON, "BLOCK: tl.constexpr", "BLOCK"),
    "a decorator": ("softmax", TRITON, "@triton.jit", "@triton.jit(debug=True)"),
    "a default's constant elsewhere": ("softmax", ROWS, "WIDTH = 8", "WIDTH = 16"),
    "one more binding": ("softmax", ROWS, "WIDTH = 8", "WIDTH = 8\nWIDTH += 1"),
    "a helper by another name": ("softmax", ROWS, "x * WIDTH", "WIDTH * x"),
    "a helper imported inside": ("softmax", ROWS, "< 1024", "<= 1024"),
    "a name that a package exports": ("softmax", ROWS, "math.exp(x)", "math.exp2(x)"),
    "where an export is from": (
        "softmax",
        INIT,
        "from .rows import exported",
        "from .whole import A as exported",
    ),
    "names swapped": ("softmax", TRITON, "scaled as scaled_rows", "exported as scaled_rows"),
    "another package's import": ("softmax", TRITON, "triton.language as tl", "triton.gluon as tl"),
    "an effect in a reached module": ("softmax", ROWS, "def scaled", "math.setup()\ndef scaled"),
    "an effect's helper": ("softmax", ROWS, "def scaled", "LIMITS['x'] = Problem\ndef scaled"),
    "a deletion": ("softmax", ROWS, "def scaled", "del LIMITS\ndef scaled"),
    "an effect in a package above": ("softmax", INIT, "from", "import torch\ntorch.use()\nfrom"),
    "an effect of a module imported": ("softmax", INIT, "from", "import kernels.flags\nfrom"),
    "names that are all imported": ("softmax", INIT, "from", "from .whole import *\nfrom"),
    "a global assigned in a function": ("counted", TRITON, "COUNT += 1", "COUNT += 2"),
    "a module passed on": ("passed", WHOLE, "B = 2", "B = 3"),
    "a module imported by a string": ("by_string", WHOLE, "B = 2", "B = 3"),
    "a branch that binds": ("peer", TRITON, "quack = None", "quack = 1"),
}

STAYS = {
    "a comment": (TRITON, "# A comment.", "# Another."),
    "docstrings": (TRITON, '"""One row."""', '"""A row."""'),
    "no docstring": (ROWS, '"""Rows."""', ""),
    "a constant's docstring": (ROWS, "WIDTH = 8", 'WIDTH = 8\n"""Columns."""'),
    "parentheses": (TRITON, "x + LOWEST", "(\n  (x)\n  + LOWEST\n)"),
    "quotes": (TRITON, '"evict"', "'ev' 'ict'"),
    "a trailing comma": (TRITON, "BLOCK: tl.constexpr)", "BLOCK: tl.constexpr,)"),
    "another function": (TRITON, "return COUNT", "return COUNT + 1"),
    "a new provider": (
        TRITON,
        "kernel = (softmax, counted)",
        "def new(x): ...\nkernel = (softmax, counted, new)",
    ),
    "a list of providers named as a local": (TRITON, "(softmax, counted)", "(softmax, passed)"),
    "an unused import": (TRITON, "import importlib", "import importlib, os\nfrom kernels.whole import A"),
    "an unused name of an import": (TRITON, "import exported, whole", "import exported, whole, flags2"),
    "an import for types": (TRITON, "import Problem", "import Problem, fits"),
    "exports": (TRITON, '["softmax"]', '["softmax", "counted"]\n__all__ += []\n__all__.append("body")'),
    "a class in an annotation": (ROWS, "columns: int = 1", "columns: int = 2"),
    "another module": (WHOLE, "A = 1", "A = 2"),
    "a module's main": (ROWS, "def scaled", 'if __name__ == "__main__":\n    exit()\ndef scaled'),
    "a file beside": ("softmax/numba.py", "", "def softmax(x): return x\n"),
}


HELPED = "    return _wide(x)\n\ndef _wide(y):\n    z = y * 8\n    return z"
"""A function of rows.py that has a private helper."""

RENAMED = {
    "a local": HELPED.replace("z", "total"),
    "a parameter": HELPED.replace("y", "value"),
    "a private function": HELPED.replace("_wide", "_broad"),
    "a private function's file": HELPED,
    "the order of functions": HELPED,
}


@pytest.mark.parametrize("what", RENAMED)
def test_names_and_places_that_nobody_outside_sees_change_nothing(tmp_path: Path, what: str) -> None:
    before = reached(planted(tmp_path / "before", (ROWS, "    return x * WIDTH", HELPED))).digest
    text = RENAMED[what]
    caller, _, helper = text.partition("\n\n")
    edits = [(ROWS, "    return x * WIDTH", text)]
    if what == "a private function's file":
        edits = [
            (ROWS, "    return x * WIDTH", caller),
            (ROWS, "import math", "import math\nfrom .whole import _wide"),
        ]
        edits.append((WHOLE, "A = 1", f"from __future__ import annotations\n{helper}\nA = 1"))
    elif what == "the order of functions":
        edits = [(ROWS, "def scaled(x):\n    return x * WIDTH", f"{helper}\n\ndef scaled(x):\n{caller}")]
    assert reached(planted(tmp_path / "after", *edits)).digest == before


def test_the_name_of_a_module_changes_nothing(tmp_path: Path) -> None:
    roots = planted(tmp_path)
    before = reached(roots).digest
    (tmp_path / ROWS).rename(tmp_path / "lines.py")
    for file in (INIT, TRITON):
        text = (tmp_path / file).read_text()
        for old, new in (
            ("kernels.rows as rows", "kernels.lines as rows"),
            (".rows import", ".lines import"),
        ):
            text = text.replace(old, new)
        (tmp_path / file).write_text(text)
    assert reached(roots).digest == before


METHODS_CHANGE = {
    "a property": (PROBLEM, "self.rows, padded", "self.rows + 1, padded"),
    "a decorator": (PROBLEM, "@property\n    def shape", "@staticmethod\n    def shape"),
    "a new method": (PROBLEM, "    @property", "    def __post_init__(self): check(self)\n\n    @property"),
    "a constant that a method mentions": (PROBLEM, "FACTOR = 2", "FACTOR = 4"),
    "a function that a method calls": (SHAPES, "return x", "return x + 1"),
    "a method of a base": (SHAPES, "self.columns * WIDTH", "WIDTH"),
    "a constant that a base's method mentions": (SHAPES, "WIDTH = 8", "WIDTH = 16"),
    "a base's base": (SHAPES, "class Based:", "class Based(Part):"),
    "another base": (PROBLEM, "Matrix(Shared[Part])", "Matrix(Other)"),
    "a base's argument": (PROBLEM, "Shared[Part]", "Shared[int]"),
    "the class's decorator": (PROBLEM, "frozen=True", "frozen=False"),
    "a class variable": (PROBLEM, "ClassVar[int] = 1", "ClassVar[int] = 2"),
    "a name without annotation": (PROBLEM, '("x",)', '("y",)'),
    "one more binding": (PROBLEM, "Alias = Matrix", "Matrix = traced(Matrix)"),
    "a module's effect": (SHAPES, "LIMIT = 5", "LIMIT = 5\nimport torch\ntorch.use()"),
}

METHODS_STAY = {
    "choices": (PROBLEM, "one_of(*DTYPES)", 'one_of("bfloat16", *DTYPES)'),
    "a field's constant": (PROBLEM, 'float16")', 'float16", "float64")'),
    "a default": (PROBLEM, "rows: int = DEPTH", "rows: int"),
    "a default's constant": (PROBLEM, "DEPTH = 3", "DEPTH = 4"),
    "a field's type": (PROBLEM, "rows: int", "rows: bool"),
    "a new field": (PROBLEM, "    dtype", '    more: str = one_of("a", "b")\n    dtype'),
    "a field of a base": (SHAPES, "columns: int = LIMIT", "columns: int"),
    "a constant of a base's field": (SHAPES, "LIMIT = 5", "LIMIT = 6"),
    "docstrings": (PROBLEM, '"""Of it."""', '"""Of the matrix."""'),
    "the class's docstring": (PROBLEM, '"""A matrix."""', ""),
    "another class": (PROBLEM, "return Maker()", "return None"),
}


CHANGED = CHANGES | {f"of methods, {name}": ("Matrix.*", *edit) for name, edit in METHODS_CHANGE.items()}
UNCHANGED = {name: ("softmax", *edit) for name, edit in STAYS.items()} | {
    f"of methods, {name}": ("Matrix.*", *edit) for name, edit in METHODS_STAY.items()
}


@pytest.mark.parametrize("what", [*CHANGED, *UNCHANGED])
def test_an_edit_changes_the_digest_where_it_counts(tmp_path: Path, what: str) -> None:
    entry, *edit = (CHANGED | UNCHANGED)[what]
    before, after = (
        reached(planted(tmp_path / at, *edits), entry).digest
        for at, edits in (("before", ()), ("after", (tuple(edit),)))
    )
    assert (before != after) == (what in CHANGED)


REACHED = {
    "softmax": {
        "kernels.rows": ["WIDTH", "exported", "fits", "scaled"],
        "kernels.softmax.triton": ["LOWEST", "body", "softmax"],
    },
    "Matrix.*": {
        "kernels.problem": ["FACTOR", "Matrix"],
        "kernels.shapes": ["Based", "Part", "WIDTH", "padded"],
    },
}


@pytest.mark.parametrize("entry", REACHED)
def test_what_an_entry_reaches(tmp_path: Path, entry: str) -> None:
    expected = [f"{module}:{name}" for module, names in REACHED[entry].items() for name in names]
    assert sorted(reached(planted(tmp_path), entry).definitions) == sorted(expected)


def test_a_method_that_names_its_class_reaches_its_fields(tmp_path: Path) -> None:
    roots = planted(tmp_path)
    before = reached(roots, "Maker.*").digest
    file = roots["kernels"] / PROBLEM
    file.write_text(
        file.read_text().replace("class Maker:\n    rows: int = 1", "class Maker:\n    rows: int = 2")
    )
    assert reached(roots, "Maker.*").digest != before


def test_a_class_in_a_branch_counts_whole(tmp_path: Path) -> None:
    found = reached(planted(tmp_path), "Branched.*").definitions
    assert found == ("kernels.problem:Branched", "kernels.problem:FACTOR")


def test_a_class_and_its_methods_are_counted_apart(tmp_path: Path) -> None:
    roots = planted(tmp_path)
    file = roots["kernels"] / PROBLEM
    whole, part = (file, "Matrix"), (file, "Matrix.*")
    found = [closure(entries, roots).digest for entries in ([whole], [part], [whole, part], [part, whole])]
    assert len(set(found)) == 4


@pytest.mark.parametrize("name", ["padded", "DTYPES", "Alias"])
def test_methods_of_what_is_no_class(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        LookupError, match=rf"'{name}' of .*problem\.py is not a class that this file defines"
    ):
        reached(planted(tmp_path), f"{name}.*")


def test_methods_of_a_class_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"problem\.py defines no 'Nobody' at its top level"):
        reached(planted(tmp_path), "Nobody.*")


def test_local_names_hide_those_of_the_module(tmp_path: Path) -> None:
    assert reached(planted(tmp_path), "shadow").definitions == ("kernels.softmax.triton:shadow",)


def test_what_is_stopped_at_counts_as_its_import(tmp_path: Path) -> None:
    digests = []
    for old, new in (("", ""), ("x * WIDTH", "WIDTH * x")):
        roots = planted(tmp_path / str(len(new)), (ROWS, old, new))
        found = closure([(roots["kernels"] / TRITON, "softmax")], roots, stop=["kernels.rows"])
        digests.append(found.digest)
    assert len(set(digests)) == 1


def test_a_kernel_outside_of_the_repository(tmp_path: Path) -> None:
    roots = planted(tmp_path / "kernels")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "triton.py").write_text(
        "from kernels.rows import fits\nfrom . import more\ndef f(): fits(more.g)\n"
    )
    (folder / "more.py").write_text("g = 1\n")
    found = closure([(folder / "triton.py", "f")], {**roots, "_outside_1": folder})
    assert found.definitions == ("_outside_1.more:g", "_outside_1.triton:f", "kernels.rows:fits")


def test_cycles_end(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("from .a import f\n")
    (tmp_path / "a.py").write_text("from . import b\nfrom k import f as g\ndef f(): return b.f, g\n")
    (tmp_path / "b.py").write_text("from .a import f as h\ndef f(): return h, f\n")
    found = closure([(tmp_path / "a.py", "f")], {"k": tmp_path})
    assert found.definitions == ("k.a:f", "k.b:f")


def test_an_entry_that_is_not_there(tmp_path: Path) -> None:
    roots = planted(tmp_path / "kernels")
    with pytest.raises(LookupError, match=r"triton\.py defines no 'nobody'"):
        reached(roots, "nobody")
    with pytest.raises(LookupError, match=r"elsewhere\.py is outside of the folders"):
        closure([(tmp_path / "elsewhere.py", "f")], roots)
    (tmp_path / "kernels" / ROWS).write_text("def f(:\n")
    with pytest.raises(SyntaxError) as error:
        reached(roots)
    assert error.value.filename == str(tmp_path / "kernels" / ROWS)


EVERY_SYNTAX = r'''
from __future__ import annotations
import asyncio as a, torch

@a.wrap(1.5, key=2j, *[1], **{"x": None})
async def f(x: int, /, y: "str" = 'ü\x00\ud800', *rest, z=0x_ff, **more) -> list[int]:
    """Doc."""
    async with a.b() as (c, *d), a.e: ...
    async for i in a.g():
        yield [j async for j in i if (k := j) > -0.0]
    print(f"a{x!r:>{y}}b" "c" f"{y=}{x:}{z:{x}.{y}}" f"", b"\xff", 1e999, ..., 10 ** 400, True)

def g(command: object) -> object:
    match command:
        case [1, None, True, *rest] | {"a": 1.5, **rest}: return lambda *p, q=1: (p, q, *rest)
        case str(x) | a.C(y=x) if x: return {**x, 1: {2}}, {k: v for k, v in x}, x[1:2, ::3, *x]
        case _ as other: raise ValueError from other
    try: del command[0]
    except* OSError as error: assert error, "text"
    else: nonlocal_ = yield from x
    finally: pass
    while not x < 1 <= 2 is not None: x @= 2; continue

class C(g, metaclass=f):
    """Doc."""
    x: int
    y: list[str] = []
'''
EVERY_SYNTAX_DIGEST = "5eaa4ee3deece34f"


def test_the_digest_is_the_same_as_on_every_other_python(tmp_path: Path) -> None:
    (tmp_path / "every.py").write_text(EVERY_SYNTAX, encoding="utf-8")
    entries = [(tmp_path / "every.py", name) for name in "fgC"]
    assert closure(entries, {"every": tmp_path}).digest == EVERY_SYNTAX_DIGEST


ELSEWHERE = """
import json, sys
from pathlib import Path
folder, file, root, *names = sys.argv[1:]
sys.path.insert(0, folder)
from pipeline.keys.closure import closure
print(closure([(Path(file), name) for name in names], {"kernels": Path(root)}).digest)
"""


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_repository_s_own_kernels_are_the_same_on_every_python(tmp_path: Path, version: str) -> None:
    every = tmp_path / "every.py"
    every.write_text(EVERY_SYNTAX, encoding="utf-8")
    python = next(iter(pythons(version)), None)
    if python is None:
        pytest.skip(f"no Python {version} here")
    for file, root in ((KERNELS / "softmax" / "triton.py", KERNELS), (every, tmp_path)):
        tree = ast.parse(file.read_bytes())
        names = [node.name for node in tree.body if isinstance(node, DEFINITIONS)]
        arguments = [str(ROOT), str(file), str(root), *names]
        done = subprocess.run([python, "-I", "-c", ELSEWHERE, *arguments], stdout=subprocess.PIPE, check=True)
        assert names
        found = closure([(file, name) for name in names], {"kernels": root})
        assert done.stdout.decode().strip() == found.digest


def pythons(version: str) -> list[str]:
    """The interpreters of a version that run: those on PATH, which may be pyenv's shims, and pyenv's own."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *map(str, versions.glob(f"{version}.*/bin/python{version}"))]
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        found.append(sys.executable)
    return [
        python
        for python in found
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    ]
