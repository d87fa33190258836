"""On the code that measures and on the repository's kernels: no single fault leaves the digest as it was."""

import copy
from pathlib import Path

import pytest

from kernel_pipeline import loading
from pipeline.keys import versions
from pipeline.keys.closure import closure
from tests.pipeline.keys import single_faults

Entries = list[tuple[str, str]]


def measuring() -> tuple[str, Path, Entries, tuple[str, ...]]:
    """The code that times on a GPU and verifies: package, folder, entries, and modules left out."""
    entries, stop = versions.measuring("graph")
    package = loading.LIBRARY.name
    return package, loading.LIBRARY, [(file.removeprefix(f"{package}/"), one) for file, one in entries], stop


def kernels() -> tuple[str, Path, Entries, tuple[str, ...]]:
    entries = []
    for name in ("softmax", "matmul", "attention"):
        kernel = loading.load(name).kernel
        entries += [(f"{name}/{kernel.reference}", each) for each in ("inputs", "outputs", "reference")]
        python = [one for one in kernel.providers if one.file.endswith(".py")]
        entries += [(f"{name}/{one.file}", one.function) for one in python]
    return "kernels", loading.ROOT, entries, ()


@pytest.mark.slow
@pytest.mark.parametrize("code", [measuring, kernels])
def test_a_single_fault_changes_the_digest(code, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A fault in each third definition: the digest takes half a second."""
    package, root, entries, stop = code()
    reached = closure([(root / file, name) for file, name in entries], {package: root}, stop)
    trees = single_faults.read(root, {file.relative_to(root).as_posix() for file in reached.files})
    single_faults.write(trees, tmp_path)

    def digest() -> str:
        return closure([(tmp_path / file, name) for file, name in entries], {package: tmp_path}, stop).digest

    before, missed, definitions, planted = digest(), [], 0, 0
    for file, tree in trees.items():
        module = f"{package}.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        defined = {one.partition(":")[2] for one in reached.definitions if one.startswith(f"{module}:")}
        for what, plant in single_faults.faults(copy.deepcopy(tree), defined, seed=len(file)):
            definitions += 1
            if definitions % 3:
                continue
            single_faults.write({file: plant()}, tmp_path)
            planted += 1
            if digest() == before:
                missed.append(f"{file}: {what}")
        single_faults.write({file: tree}, tmp_path)
    assert planted > 30
    assert not missed
