"""Every exercise takes its solution and refuses the usual mistake; the command leads through it."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from docs.exercises import __main__ as command
from docs.exercises import _catalog
from docs.exercises._catalog import Exercise
from docs.exercises._checking import check
from pipeline import ROOT
from tests.processes import completed
from tests.project import python

EXERCISES = _catalog.exercises()


def answer(exercise: Exercise, part: str, folder: Path) -> str | None:
    """Return what is said of a learner's file with this part."""
    if exercise.topic == "CUDA C++" and shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    if exercise.topic == "Numba":
        pytest.importorskip("numba.cuda")
    file = folder / f"{exercise.name}.py"
    file.write_text(exercise.filled(part))
    return check(exercise.name, file)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)
def test_the_solution_is_right(exercise: Exercise, tmp_path: Path) -> None:
    assert answer(exercise, exercise.solution, tmp_path) is None


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)
def test_the_usual_mistake_is_shown_by_yours_and_expected(exercise: Exercise, tmp_path: Path) -> None:
    said = answer(exercise, exercise.mistake, tmp_path)
    assert said is not None and re.search(r"^Case \d+ of \d+, .*\n(.*\n)*yours .*\nexpected ", said), said


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.name)
def test_an_exercise_is_short_and_its_file_keeps_the_answer_back(exercise: Exercise) -> None:
    assert 2 <= len(exercise.solution.splitlines()) <= 20 and len(exercise.hints) >= 2
    assert exercise.prompt and len(exercise.title) <= 80
    start = exercise.start
    assert _catalog.is_empty(start) and not _catalog.is_empty(exercise.filled(exercise.solution))
    compile(start, exercise.name, "exec")
    for kept in (exercise.mistake, *exercise.hints, max(exercise.solution.splitlines(), key=len)):
        assert kept.strip() not in start


def test_an_error_names_the_learners_line(tmp_path: Path) -> None:
    said = answer(_catalog.find("softmax_online"), "total = totl", tmp_path)
    assert said is not None and re.search(r"softmax_online.py:\d+: `total = totl`: .*NameError", said), said


def test_a_compilers_error_names_the_line_of_the_source(tmp_path: Path) -> None:
    said = answer(_catalog.find("stencil_halo"), "tile[t] = 1.0f;\ntile[t + 1] = one;", tmp_path)
    line = (
        _catalog.find("stencil_halo")
        .source.partition('SOURCE = r"""\n')[2]
        .partition("// YOURS")[0]
        .count("\n")
    )
    assert said is not None and f"the compiler says SOURCE, line {line + 4}: error: " in said, said


def test_the_page_lists_every_exercise() -> None:
    page = (ROOT / "docs" / "exercises.md").read_text()
    assert page.endswith(_catalog.table()), "write the lists of the page anew: _catalog.table() returns them"


def test_the_lectures_name_exercises_that_are_there() -> None:
    lines = [
        line
        for page in (ROOT / "docs" / "lectures").glob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith("Exercise")
    ]
    named = {name.split()[-1] for line in lines for name in re.findall(r"`([^`]+)`", line)}
    assert len(named) > 12 and named <= {one.name for one in EXERCISES}


def test_the_command_writes_a_file_gives_hints_and_never_overwrites_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.exercise("softmax_row", []) == 0
    file = tmp_path / "outputs" / "exercises" / "softmax_row.py"
    line = file.read_text().splitlines().index("    ...") + 1
    assert f"Your part: outputs/exercises/softmax_row.py, line {line}." in capsys.readouterr().out
    with pytest.raises(_catalog.UserError, match=f"line {line}: your part is still empty"):
        command.exercise("softmax_row", [])
    file.write_text("mine")
    assert command.exercise("softmax_row", ["hint=3"]) == 0
    assert capsys.readouterr().out.endswith("other=float('-inf').\nNext: solution=true\n")
    assert command.exercise("softmax_row", ["solution=true"]) == 0
    assert capsys.readouterr().out.startswith("values = tl.load(")
    command.listed()
    assert "\n  * softmax_row " in capsys.readouterr().out
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["softmx_row"], "unknown exercise 'softmx_row'. Did you mean 'softmax_row'? Known: "),
        (["softmax_row", "hints=1"], "unknown option 'hints'. Did you mean 'hint'? Known: hint, solution."),
        (["softmax_row", "hint=4"], "hint=4: softmax_row has hints 1 to 3."),
        (["softmax_row", "hint=first"], "hint: write a number, as in hint=1, not 'first'."),
        (["softmax_row", "solution=yes"], "solution: write solution=true."),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["exercises", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith(f"error: {sentence}") and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matmul_tile", "vector_loads"])
def test_the_command_counts_the_accesses_of_a_right_kernel(name: str, tmp_path: Path) -> None:
    exercise = _catalog.find(name)
    if exercise.topic == "CUDA C++" and shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    code, out, _ = said_by_the_command(exercise, exercise.filled(exercise.solution), tmp_path)
    assert (code, out.startswith("Right.\nPTX for sm_90: ")) == (0, True), out
    counts = r": [1-9]\d* loads? of \d+ bytes and [1-9]\d* stores? of \d+ bytes\."
    assert re.search(rf"{counts}\nThe solution: the same\.\n$", out), out


@pytest.mark.slow
def test_the_command_outlives_a_wrong_file_and_one_that_crashes(tmp_path: Path) -> None:
    exercise = _catalog.find("waves")
    code, out, error = said_by_the_command(exercise, exercise.filled(exercise.mistake), tmp_path)
    assert (code, out.startswith("Case "), error) == (1, True, "")
    code, _, error = said_by_the_command(exercise, "import os\n\nos.abort()\n", tmp_path)
    assert code == 2 and error.startswith("error: outputs/exercises/waves.py ended by signal 6: "), error


def said_by_the_command(exercise: Exercise, text: str, folder: Path) -> tuple[int, str, str]:
    """Check a learner's file by the command. Return its exit code and outputs."""
    file = folder / "outputs" / "exercises" / f"{exercise.name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    done = python("-m", "docs.exercises", exercise.name, cwd=folder, PYTHONPATH=str(ROOT))
    return done.returncode, done.stdout, done.stderr


def test_a_closed_pipe_ends_the_list_without_a_traceback() -> None:
    shell = f"{sys.executable} -m docs.exercises | head -1"
    done = completed(shell, shell=True, cwd=ROOT)
    assert done.stderr == ""
