"""Follow docs/own_kernel.md and docs/swiglu.md word for word."""

import re
import shutil
from pathlib import Path

import pytest

from pipeline import ROOT
from tests.lectures import is_shown
from tests.planted.tree import Tree, cpu_tree, forget
from tests.project import python

BLOCK = re.compile(r"```(sh|python|diff|)\n(.*?)```", re.DOTALL)

FIRST, CHECKLIST = (ROOT / "docs/own_kernel.md").read_text().split("## The checklist")
STEPS = (ROOT / "docs/swiglu.md").read_text()

LONG = ("pytest", "mypy")
"""Slow commands, which the other tests and ``make types`` run for every kernel."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    made = cpu_tree(tmp_path_factory.mktemp("own"))
    shutil.copy(ROOT / "pyproject.toml", made.root)
    # A developer who followed the pages has these kernels.
    for name in ("my_kernel", "swiglu"):
        forget(name, made.root)
    return made


def run(tree: Tree, line: str) -> str:
    """Run a command, which must succeed, without a GPU and without tracking. Return its output."""
    options = ["device=cpu", "tracking=none"] if "pipeline.sweep" in line else []
    options += ["device=cpu"] if "pipeline.report" in line else []
    done = python(*line.split()[1:], *options, cwd=tree.root, TMPDIR=str(tree.temporary))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def follow(tree: Tree, text: str, kernel: str) -> list[str]:
    """Follow the text about a kernel and compare the outputs that it shows. Return the modules that it
    runs."""
    modules = []
    printed = ""
    for block in BLOCK.finditer(text):
        language, content = block.groups()
        # A block belongs to the file that was last named before it.
        names = re.findall(rf"`(kernels/{kernel}/\w+\.py)`", text[: block.start()])
        if language == "sh":
            for line in content.splitlines():
                if line.split()[2] not in LONG:
                    modules.append(line.split()[2])
                    printed = run(tree, line)
        elif language == "":
            assert is_shown(content, printed), printed
        elif language == "python" and not content.startswith('"""'):
            continue  # a part of a file, as an example
        elif language == "python":
            assert (tree.root / names[-1]).exists(), "it was written as a start"
            (tree.root / names[-1]).write_text(content)
        else:
            edit(tree.root / names[-1], content)
    return modules


def edit(path: Path, difference: str) -> None:
    """Apply a diff of whole lines. Each removed line must occur once."""
    lines = difference.splitlines()
    old, new = ([line[1:] for line in lines if line[0] == sign] for sign in "-+")
    assert len(old) + len(new) == len(lines)
    text = path.read_text()
    for left, right in zip(old, new, strict=True):
        assert text.count(left) == 1
        text = text.replace(left, right)
    path.write_text(text)


@pytest.mark.long
@pytest.mark.slow
def test_the_first_kernel_is_written_measured_and_plotted(tree: Tree) -> None:
    modules = follow(tree, FIRST, "my_kernel")
    assert modules == ["pipeline.new", "pipeline.sweep", "pipeline.report"]
    found = {(row.point.provider, row.outcome.status) for row in tree.rows("my_kernel")}
    assert found == {("torch", "ok"), ("triton", "verified")}
    assert (tree.root / "outputs/reports/plots/my_kernel.svg").is_file()
    assert follow(tree, CHECKLIST, "my_kernel") == ["ruff", "ruff"], "and is clean"


@pytest.mark.slow
def test_the_checklist_names_the_tests_that_there_are() -> None:
    named = re.findall(r"^\| `(test_\w+\.py)(?::(test_\w+))?`", CHECKLIST, re.MULTILINE)
    assert len(named) >= 8
    for file, test in named:
        text = (ROOT / "tests" / "kernels" / file).read_text()
        assert not test or f"def {test}(" in text
    sizes = re.search(r"use the sizes ([\d, and]+), and on a\s+GPU also ([\d, and]+)\.", CHECKLIST)
    assert sizes is not None
    text = (ROOT / "tests" / "kernels" / "test_correctness.py").read_text()
    for some in sizes.groups():
        assert ", ".join(re.findall(r"\d+", some)) in text


@pytest.mark.long
@pytest.mark.slow
def test_the_walk_through_adds_a_kernel(tree: Tree) -> None:
    assert follow(tree, STEPS, "swiglu") == ["pipeline.new", "pipeline.sweep"]
    for check in ("check", "format --check"):
        run(tree, f"python -m ruff {check} kernels/swiglu")
    rows = tree.rows("swiglu")
    found = {(row.point.provider, row.outcome.status) for row in rows}
    assert found == {("torch", "ok"), ("torch_compile", "ok"), ("triton", "verified")}
    assert len(rows) == 6
