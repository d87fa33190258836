"""The digest of a provider's files: what changes it, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_pipeline import loading
from kernel_pipeline.ops import source

DECLARATION = '''"""Nothing."""

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work


@dataclass(frozen=True, kw_only=True)
class Problem:
    n: int


kernel = Kernel(
    Problem,
    size=("n",),
    work=lambda problem: Work(0, {}),
    tolerance=lambda problem: Tolerance(0, 0),
    providers=(
        Provider("torch", "torch.py:f"),
        Provider("own", "triton.py:f"),
        Provider("cuda", "cuda.cu:f"),
    ),
)
'''

TRITON = '''"""Text."""

from . import shared
from kernel_pipeline.tensors import normal


def f(x):
    return shared.g(x)
'''

REORDERED = "from kernel_pipeline.tensors import normal\nfrom . import shared\n"

FILES = {
    "__init__.py": DECLARATION,
    "torch.py": "def f(x):\n    return x\n",
    "triton.py": TRITON,
    "shared.py": (
        "def g(x):\n    if x is None:\n        raise ValueError('no x')\n    return x + 1\n"
        "def why(x):\n    return f'{x + 1} is large'\n"
    ),
    "cuda.cu": '#include "part.cuh"\nint f() { return g(); }  // text\n',
    "part.cuh": "#define TWO (2)\ninline int g() { return TWO; }\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def digests(folder: Path) -> dict[str, str]:
    """Return every provider's digest, as another process computes it."""
    source._of_files.cache_clear()
    loaded = loading.load(str(folder))
    return {one.name: source.digest(loaded, one.name) for one in loaded.kernel.providers}


@pytest.mark.parametrize(
    ("file", "edit", "changed"),
    [
        ("torch.py", lambda text: text.replace("return x", "return 2 * x"), {"torch"}),
        ("triton.py", lambda text: text.replace("g(x)", "g(x) + 0"), {"own"}),
        ("shared.py", lambda text: text.replace("return x + 1", "return x + 2"), {"own"}),
        ("part.cuh", lambda text: text.replace("(2)", "(3)"), {"cuda"}),
        ("cuda.cu", lambda text: text.replace("return g()", "return -g()"), {"cuda"}),
        ("part.cuh", lambda text: text.replace("TWO (2)\n", "TWO (2)"), {"cuda"}),
        ("triton.py", lambda text: text.replace("Text.", "Other text.") + "\n\n# More.\n", set()),
        (
            "shared.py",
            lambda text: text.replace("return x + 1", "return (\n        x\n        + 1  # more\n    )"),
            set(),
        ),
        (
            "cuda.cu",
            lambda text: text.replace("{ return g(); }  // text", "{\n  return g();\n}\n/* none */"),
            set(),
        ),
        ("shared.py", lambda text: text.replace("no x", "x is missing").replace("large", "big"), set()),
        ("triton.py", lambda text: text.replace(TRITON.split("\n\n")[1], REORDERED), set()),
        ("shared.py", lambda text: text.replace("ValueError", "TypeError"), {"own"}),
        ("shared.py", lambda text: text.replace("{x + 1}", "{x + 3}"), {"own"}),
        ("__init__.py", lambda text: text.replace("Nothing", "Something"), set()),
    ],
)
def test_what_a_provider_runs_changes_its_digest_and_nothing_else_does(
    folder: Path, file: str, edit: Callable[[str], str], changed: set[str]
) -> None:
    before = digests(folder)
    path = folder / file
    assert edit(path.read_text()) != path.read_text()
    path.write_text(edit(path.read_text()))
    after = digests(folder)
    assert {name for name in before if before[name] != after[name]} == changed


def test_the_place_of_the_folder_changes_nothing(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("elsewhere")
    for name, text in FILES.items():
        (other / name).write_text(text)
    assert digests(folder) == digests(other)


def test_every_provider_of_every_kernel_has_a_digest_of_its_own_entry() -> None:
    for name in loading.names():
        loaded = loading.load(name)
        found = [source.digest(loaded, one.name) for one in loaded.kernel.providers]
        assert len(set(found)) == len({(one.entry, one.compiled) for one in loaded.kernel.providers})
