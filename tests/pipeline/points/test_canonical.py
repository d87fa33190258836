"""On the code that measures and on the repository's kernels: what is renamed or moved throughout leaves their
digests equal, and no single fault does."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernel_pipeline import loading
from pipeline import ROOT
from pipeline.execution import versions
from pipeline.points.closure import Closure, closure
from tests.pipeline.points import rewriting
from tests.pipeline.points.rewriting import Trees


@dataclass
class Code:
    """Entries of a package, by path below its folder, with what is not followed."""

    package: str
    trees: Trees
    entries: list[tuple[str, str]]
    stop: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()

    def closure(self, trees: Trees, folder: Path, renamed: Callable[[str], str] = str) -> Closure:
        """What is reached, with the trees as files below a folder."""
        root = rewriting.write(trees, folder)

        def path(file: str) -> Path:
            dotted = renamed(f"{self.package}.{file.removesuffix('.py').replace('/', '.')}")
            return root / ("/".join(dotted.split(".")[1:]) + ".py")

        entries = [(path(file), name) for file, name in self.entries]
        return closure(entries, {self.package: root}, [renamed(one) for one in self.stop])


def _code(package: str, root: Path, entries: list[tuple[str, str]], stop: tuple[str, ...] = ()) -> Code:
    """The code with the text of those modules alone that are reached."""
    found = closure([(root / file, name) for file, name in entries], {package: root}, stop)
    trees = rewriting.read(root, {file.relative_to(root).as_posix() for file in found.files})
    # What strings in the code are equal to may be given by `**`, and of entries what has to be given by name.
    kept = {
        name
        for node in rewriting.nodes(trees)
        for name in (
            [node.value]
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            else [one.arg for one in node.kwonlyargs]
            if isinstance(node, ast.arguments)
            else []
        )
    }
    return Code(package, trees, entries, stop, frozenset(kept))


def _measuring(way: str) -> Code:
    entries, stop = versions.measuring(way)
    return _code("pipeline", ROOT / "pipeline", list(entries), stop)


def _kernels() -> Code:
    entries = []
    for name in ("softmax", "matmul", "attention"):
        loaded = loading.load(name)
        entries += [
            (f"{name}/{loaded.kernel.reference}", each) for each in ("inputs", "outputs", "reference")
        ]
        python = [one for one in loaded.kernel.providers if one.file.endswith(".py")]
        entries += [(f"{name}/{one.file}", one.function) for one in python]
    return _code("kernels", loading.ROOT, entries)


@pytest.fixture(scope="module", params=["graph", "kernels"])
def code(request: pytest.FixtureRequest) -> Code:
    return _kernels() if request.param == "kernels" else _measuring(request.param)


@pytest.mark.parametrize(
    "what",
    [
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("locals", "privates", "modules", "places", "order", "words")
        ),
        "everything",
    ],
)
def test_what_nobody_outside_sees_changes_no_digest(code: Code, tmp_path: Path, what: str) -> None:
    before = code.closure(code.trees, tmp_path / "before")
    trees = copy.deepcopy(code.trees)
    renamed: Callable[[str], str] = str
    if what in ("order", "everything"):
        rewriting.reorder(trees)
    if what in ("words", "everything"):
        rewriting.reword(trees)
    if what in ("locals", "everything"):
        rewriting.rename_locals(trees, code.kept)
    if what in ("privates", "everything"):
        assert rewriting.rename_privates(trees)
    if what in ("places", "everything"):
        rewriting.move_apart(trees, code.package)
    if what in ("modules", "everything"):
        renamed = rewriting.rename_modules(trees, code.package)
    assert code.closure(trees, tmp_path / "after", renamed).digest == before.digest


@pytest.mark.slow
def test_every_single_fault_changes_the_digest(code: Code, tmp_path: Path) -> None:
    before = code.closure(code.trees, tmp_path)
    missed, planted = [], 0
    for file, tree in code.trees.items():
        module = f"{code.package}.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        defined = {one.partition(":")[2] for one in before.definitions if one.startswith(f"{module}:")}
        for what, plant in rewriting.faults(copy.deepcopy(tree), defined, seed=len(file)):
            faulty = plant()
            rewriting.write({file: faulty}, tmp_path)
            planted += 1
            after = closure(
                [(tmp_path / path, name) for path, name in code.entries], {code.package: tmp_path}, code.stop
            )
            if after.digest == before.digest:
                missed.append(f"{file}: {what}")
        rewriting.write({file: tree}, tmp_path)
    assert planted > 50
    assert not missed
