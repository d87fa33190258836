"""Every command in docs/lectures/ that needs no GPU prints what its page shows."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest

from pipeline import ROOT
from pipeline.reporting.numbers import number
from tests.lectures import PAGES, Command, commands
from tests.planted.tree import Tree, cpu_tree
from tests.project import python

pytestmark = pytest.mark.xdist_group("lectures")

WITHOUT_A_GPU = [command for command in commands() if not command.needs_a_gpu]

IN_TURN = """
import json, os, runpy, sys

import torch._dynamo, torch.utils.cpp_extension
import pipeline.codegen, kernel_pipeline.execution.instance, pipeline.profile

del sys.modules["pipeline.codegen"], sys.modules["pipeline.profile"]
folder = sys.argv[1]
for number, (variables, words) in enumerate(json.loads(sys.argv[2])):
    child = os.fork()
    if child == 0:
        written = os.open(f"{folder}/{number}.said", os.O_CREAT | os.O_WRONLY)
        os.dup2(written, 1)
        os.dup2(written, 2)
        os.environ.update(variables)
        if "TRITON_INTERPRET" in variables:  # it must be set before Triton is imported
            os.execv(sys.executable, [sys.executable, *words])
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
        sys.exit()
    os.waitpid(child, 0)
"""
"""Run each command in its own process, forked after the imports that most commands need."""


def said(tree: Tree, several: Sequence[Command]) -> dict[Command, str]:
    """Run the commands without a GPU. Return their outputs."""
    folder = tree.temporary
    words = [(dict(command.variables), [*command.words, *on_the_cpu(command)]) for command in several]
    # A reader sets neither: only PYTHONPATH makes some commands of a debugger find their file.
    own = ("PYTHONPATH", "TRITON_INTERPRET")
    environment = {name: value for name, value in tree.variables.items() if name not in own}
    subprocess.run(
        [sys.executable, "-c", IN_TURN, str(folder), json.dumps(words)],
        cwd=tree.root,
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return {command: (folder / f"{number}.said").read_text() for number, command in enumerate(several)}


def on_the_cpu(command: Command) -> list[str]:
    """Return the option that makes a pipeline command run on the CPU."""
    return ["device=cpu"] * any(word in ("pipeline.profile", "pipeline.codegen") for word in command.words)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[Command, str]:
    """Run the commands and return their outputs. A command that sets variables which torch reads at import
    runs in a new process."""
    tree = cpu_tree(tmp_path_factory.mktemp("lectures"))
    for part in ("docs/lectures", "tests/pipeline/inspection/ncu", "results/profile"):
        shutil.copytree(ROOT / part, tree.root / part)
    found = said(tree, [one for one in WITHOUT_A_GPU if not of_torch(one)])
    for command in filter(of_torch, WITHOUT_A_GPU):
        done = subprocess.run(
            [sys.executable, *command.words],
            cwd=tree.root,
            env=os.environ | dict(command.variables) | {"CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        found[command] = done.stdout
    return found


def of_torch(command: Command) -> bool:
    return any(name.startswith("TORCH") for name, _ in command.variables)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("command", WITHOUT_A_GPU, ids=str)
def test_a_command_prints_what_its_page_shows(printed: dict[Command, str], command: Command) -> None:
    assert command.output, f"{command} has no output below it"
    assert command.is_shown_by(printed[command]), printed[command]


def test_a_script_that_needs_a_gpu_says_so_without_one() -> None:
    done = python("docs/lectures/square_inline.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("This script compiles CUDA and runs it: it needs an NVIDIA GPU")
    assert done.stderr.count("\n") == 1


def test_what_a_page_shows_is_compared() -> None:
    command = Command("page", False, (), ("x",), "a call is … us\n  in two …\nlines\n")
    assert command.is_shown_by("first\na call  is 1.5 us in two\n or more lines\n")
    assert not command.is_shown_by("a call is 1.5 us in three lines")
    assert not command.is_shown_by("a call was 1.5 us in two lines")


def test_every_page_has_a_command_and_is_in_the_list() -> None:
    listed = (ROOT / "docs" / "lectures.md").read_text()
    assert [int(page.name[:2]) for page in PAGES] == [*range(1, len(PAGES) + 1)]
    for page in PAGES:
        assert any(command.page == page.stem for command in commands()), page
        assert f"(lectures/{page.name})" in listed


@pytest.mark.parametrize("script", ["events", "profiler", "hello"])
def test_the_first_scripts_are_notebooks(script: str) -> None:
    """The scripts use the percent format: every line belongs to a cell, and text cells contain only
    comments."""
    text = (ROOT / "docs" / "lectures" / f"{script}.py").read_text()
    first, *cells = text.split("# %%")
    assert first == "" and len(cells) >= 4
    kinds = [cell.partition("\n")[0].strip() for cell in cells]
    assert set(kinds) == {"", "[markdown]"}
    for cell in cells:
        kind, _, body = cell.partition("\n")
        if kind.strip():
            assert all(line.startswith("#") or not line for line in body.splitlines())
        else:
            compile(body, script, "exec")


def test_the_timers_figures_are_those_of_the_committed_file() -> None:
    text = (ROOT / "docs" / "lectures" / "01_events.md").read_text()
    rows = json.loads((ROOT / "results" / "timers" / "square" / "nvidia-h200.json").read_text())
    shapes = [[4096, 256], [4096, 4096], [16384, 16384]]
    table = re.findall(r"^\| `(\w+)`.*?((?: \| [\d.]+){3}) \|$", text, re.MULTILINE)
    assert len(table) == 5
    for timer, cells in table:
        measured = [
            row["median_us"]
            for shape in shapes
            for row in rows
            if (row["shape"], row["timer"]) == (shape, timer)
        ]
        assert [number(us) for us in measured] == cells.strip(" |").split(" | ")


def test_the_scripts_of_the_lectures_are_all_in_a_page() -> None:
    told = {word for command in commands() for word in command.words}
    scripts = [str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "lectures").glob("*.py")]
    assert [script for script in scripts if script not in told] == []
