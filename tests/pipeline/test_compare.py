"""``python -m pipeline.compare`` on real commits of a repository, with real processes, interrupted and
resumed."""

import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import pytest
from mlflow import MlflowClient

from pipeline.store import turns
from pipeline.store.turns import Turn
from tests.factory import H100, H200, final, measurement, write_finals, write_results
from tests.planted.tree import Tree, cpu_tree, trust_busy_cores
from tests.repository import commit, git

# The tests share one comparison.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
    pytest.mark.xdist_group("compare"),
]

POINT = ("kernel=quick", "size=64", "provider=mul")
SHORT = ("rounds=2", "most_rounds=6", "by=180%")
"""Only large differences count, because the times of such short calls vary on a CPU that runs other processes
too. Then some have no time, and their points need more rounds."""


def edit(tree: Tree, old: str, new: str, file: str = "kernels/quick/torch.py") -> None:
    text = (tree.root / file).read_text()
    assert old in text
    (tree.root / file).write_text(text.replace(old, new))


def compare(tree: Tree, *options: str) -> subprocess.CompletedProcess[str]:
    return tree.sweep(*options, command="compare")


def said(tree: Tree, output: str = "outputs", kernel: str = "quick") -> list[Turn]:
    (path,) = (tree.root / output / "comparisons" / kernel).glob("*/*.jsonl")
    return turns.read(path, pytest.fail)


def repository(folder: Path) -> Tree:
    """Return a repository whose second commit makes a provider a hundred times slower."""
    made = cpu_tree(folder, "quick")
    trust_busy_cores(made)
    (made.root / ".gitignore").write_text("outputs/\nlocal/\nbuild/\n__pycache__/\n")
    git(made.root, "init", "--quiet", "--initial-branch=main")
    commit(made.root, message="A kernel")
    git(made.root, "tag", "fast")
    edit(made, "return x * 2", "return [x * 2 for _ in range(100)][-1]")
    commit(made.root, message="The same, slower")
    return made


def has_no_worktree(tree: Tree) -> bool:
    """Return whether all extra worktrees are removed within two minutes, however the command ended."""
    deadline = monotonic() + 120
    while len(git(tree.root, "worktree", "list").splitlines()) > 1 and monotonic() < deadline:
        sleep(0.05)
    return len(git(tree.root, "worktree", "list").splitlines()) == 1


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Return the repository with a third commit, which adds a kernel."""
    made = repository(tmp_path_factory.mktemp("compare"))
    shutil.copytree(made.root / "kernels/quick", made.root / "kernels/newer")
    shutil.copy(made.root / "conf/kernel/quick.yaml", made.root / "conf/kernel/newer.yaml")
    commit(made.root, message="A kernel more")
    return made


@dataclass(frozen=True)
class Compared:
    """A comparison that is stopped by Ctrl-C after its first round, resumed by the same command, and run a
    third time, with the measured turns after each. Another results folder holds a sweep of its second
    side. All of them are published to ``store``."""

    store: str
    stopped: subprocess.CompletedProcess[str]
    kept: list[Turn]
    done: subprocess.CompletedProcess[str]
    found: list[Turn]
    again: subprocess.CompletedProcess[str]
    at_last: list[Turn]


@pytest.fixture(scope="module")
def compared(tree: Tree) -> Compared:
    store = f"sqlite:///{tree.root.parent / 'store.db'}"
    published = ("tracking=local", f"tracking.uri={store}")
    swept = tree.sweep(*POINT, *published)
    assert swept.returncode == 0, swept.stderr
    options = (*POINT, "a=fast", "b=HEAD", *SHORT)
    process = tree.start(*options, command="compare")
    deadline = monotonic() + 120
    while not list((tree.root / "outputs").glob("comparisons/*/*/*.jsonl")) and monotonic() < deadline:
        sleep(0.05)
    while len(said(tree)) < 2 and monotonic() < deadline:
        sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    stopped = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    assert has_no_worktree(tree)
    kept = said(tree)
    done = compare(tree, *options, *published, "format=markdown")
    assert has_no_worktree(tree)
    found = said(tree)
    again = compare(tree, *options, *published)
    return Compared(store, stopped, kept, done, found, again, said(tree))


def test_a_slower_commit_is_a_regression(tree: Tree, compared: Compared) -> None:
    done = compared.done
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == "error: quick: 1 point slower.\n"
    assert "1 point: b is 0 same, 0 faster, 1 slower, 0 undecided." in done.stdout
    assert "| 64 float32 | mul | mul |" in done.stdout
    a, b = (
        git(tree.root, "rev-parse", "--short=12", "fast"),
        git(tree.root, "rev-parse", "--short=12", "HEAD"),
    )
    rounds = [(turn.round, turn.side) for turn in compared.found]
    assert rounds[:4] == [(0, a), (0, b), (1, b), (1, a)], "ABBA"
    assert len({turn.key for turn in compared.found}) == 2
    assert all(turn.outcome.timing and turn.outcome.timing.samples_us for turn in compared.found)
    picture = next((tree.root / "outputs" / "comparisons").glob("quick/*/*.svg")).read_text()
    assert "mul 64 float32" in picture


def test_ctrl_c_keeps_the_rounds_and_the_same_command_goes_on(compared: Compared) -> None:
    stopped, kept, found = compared.stopped, compared.kept, compared.found
    assert stopped.returncode == 130, stopped.stdout + stopped.stderr
    assert "Every round's samples" in stopped.stdout or "What was measured is kept" in stopped.stderr
    assert 2 <= len(kept) < 4
    assert found[: len(kept)] == kept
    whole = [turn for turn in kept if turn.round == 0]
    assert [turn for turn in found if turn.round == 0] == whole
    assert "Nothing to measure" not in compared.done.stdout


def test_what_was_compared_is_said_again_and_not_measured(compared: Compared) -> None:
    assert compared.again.returncode == 1, compared.again.stderr
    assert "Nothing to measure" in compared.again.stdout and "1 slower" in compared.again.stdout
    assert compared.at_last == compared.found


def test_mlflow_shows_a_comparison_linked_to_the_runs_of_its_sides(tree: Tree, compared: Compared) -> None:
    client = MlflowClient(compared.store)
    runs = {name: client.get_experiment_by_name(name) for name in ("quick", "comparisons")}
    (run,) = client.search_runs([runs["comparisons"].experiment_id])
    (parent,) = client.search_runs([runs["quick"].experiment_id], "tags.kind = 'ad_hoc'")
    head, fast = git(tree.root, "rev-parse", "HEAD"), git(tree.root, "rev-parse", "fast")
    assert run.data.params["commit_a"] == fast and run.data.params["commit_b"] == head
    assert run.data.tags["run_b"] == parent.info.run_id, "b was swept at this commit"
    assert "run_a" not in run.data.tags, "a was not"
    assert run.data.metrics["slower"] == 1.0 and run.data.metrics["b_over_a"] > 1.9
    assert "| 64 float32 | mul | mul |" in run.data.tags["mlflow.note.content"]
    names = {one.path.rpartition(".")[2] for one in client.list_artifacts(run.info.run_id, "comparison")}
    assert names == {"json", "jsonl", "svg"}


def test_an_edit_is_compared_with_its_commit_and_what_it_does_not_touch_is_not(tmp_path: Path) -> None:
    tree = repository(tmp_path)
    edit(tree, "for _ in range(100)", "for _ in range(1)")
    done = compare(tree, "kernel=quick", "size=64", "a=fast", "b=HEAD", *SHORT)
    assert (done.returncode, done.stdout) == (2, "")
    assert "b=HEAD names the last commit, and the working tree has edits; write b=tree" in done.stderr
    edit(tree, "return [", "return  [")  # a key ignores white space
    more = 'Provider("times", "torch.py:mul"), Provider("mul"'
    edit(tree, 'Provider("mul"', more, "kernels/quick/__init__.py")
    done = compare(tree, "kernel=quick", "size=64", *SHORT)
    assert done.returncode == 0, done.stderr
    assert "1 faster" in done.stdout and "b is tree" in done.stdout
    assert "Left out, for both sides have the same sources: 1 point." in done.stdout
    assert "Only tree has these points: times 1." in done.stdout


@pytest.mark.long
def test_the_tree_is_compared_with_itself_and_a_point_that_only_an_interpreter_runs_has_no_time(
    tree: Tree,
) -> None:
    words = ("provider=[torch_mul,triton_flat]", "size=64", "dtype=float32", "num_warps=4", "self_test=true")
    done = compare(tree, "kernel=square", *words, *SHORT, "output=outputs/itself")
    assert done.returncode == 0, done.stderr
    assert "0 of 1 equal pairs were called different" in done.stdout
    assert "Noise between rounds, launch-bound kernels: " in done.stdout
    assert "num_warps=4: right, but not timed, because Triton runs under its interpreter here" in done.stdout
    assert {turn.side for turn in said(tree, "outputs/itself", "square")} == {"a", "b"}
    ceilings = next((tree.root / "outputs/itself/ceilings").glob("*.json")).read_text()
    assert '"noise": {\n    "launch": 0.' in ceilings


def test_one_language_is_compared(tree: Tree) -> None:
    """No kernel of another language is measured, so none has a time on a CPU."""
    words = ("provider=[torch_mul,triton_flat]", "language=triton", "size=64", "dtype=float32", "num_warps=4")
    done = compare(tree, "kernel=square", *words, "self_test=true", *SHORT, "output=outputs/one_language")
    assert done.returncode == 0, done.stderr
    assert {turn.point.provider for turn in said(tree, "outputs/one_language", "square")} == {"triton_flat"}


def test_two_configurations_of_the_tree(tree: Tree) -> None:
    words = ("a=mul", "b=blocks/block_size=512", *SHORT, "output=outputs/configurations")
    done = compare(tree, "kernel=quick", "size=64", *words)
    (counts,) = re.findall(r"1 point: b is (\d) same, (\d) faster, (\d) slower, (\d) undecided", done.stdout)
    assert done.returncode == {"1000": 0, "0100": 0, "0010": 1, "0001": 3}["".join(counts)], done.stderr
    assert "blocks 512" in done.stdout
    assert {turn.side for turn in said(tree, "outputs/configurations")} == {"tree"}


def test_nothing_to_compare_passes(tree: Tree) -> None:
    """The last commit only adds a kernel."""
    last, same, every = tree.in_turn(
        "compare", ["kernel=quick"], ["kernel=quick", "a=HEAD", "b=main"], ["a=HEAD~1", "b=HEAD"]
    )
    assert [one.returncode for one in (last, same, every)] == [0, 0, 0], last.stderr + every.stderr
    assert "Nothing to compare: kernels and conf/kernel are equal in " in same.stdout
    for one in (last, every):
        assert "Nothing to compare: at all points " in one.stdout
    assert has_no_worktree(tree)


@pytest.mark.long
def test_code_that_no_longer_compiles_is_a_regression_and_its_repair_is_undecided(tmp_path: Path) -> None:
    tree = repository(tmp_path)
    source = tree.root / "kernels/square/cpp.cpp"
    source.write_text("#error no longer\n" + source.read_text())
    options = ["kernel=square", "provider=cpp", "preset=cpu", "size=64", "dtype=float32", *SHORT]
    broken = compare(tree, *options)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "error: square: tree: cpp was not built: " in broken.stderr
    commit(tree.root, message="It does not compile")
    repaired = compare(tree, *options, "a=HEAD", "b=fast")
    assert repaired.returncode == 3, repaired.stdout + repaired.stderr
    assert "undecided whether b is slower at 1 point" in repaired.stderr


@pytest.mark.long
def test_a_wrong_commit_is_a_regression_and_its_repair_is_none(tmp_path: Path) -> None:
    tree = repository(tmp_path)
    edit(tree, "return [x * 2", "return [x * 3")
    edited = compare(tree, *SHORT)  # of every kernel
    assert edited.returncode == 1, edited.stdout
    assert edited.stderr.splitlines()[-1] == "error: quick: 2 points right in a, and not in b."
    commit(tree.root, message="The same, wrong")
    late = ["kernel=quick", "size=64", "a=fast", "b=HEAD~1", "at_most=0.01s", *SHORT]
    repaired, unknown, passed, failed = tree.in_turn(
        "compare",
        [*POINT, "a=HEAD", "b=fast", *SHORT],
        late,
        [*late, "undecided=pass"],
        [*late, "undecided=fail"],
    )
    assert repaired.returncode == 0, repaired.stderr
    assert "No round began: listing the points, building and comparing the code took" in unknown.stdout
    assert unknown.returncode == 3 and "undecided whether b is slower at 1 point" in unknown.stderr
    assert (
        "quick: 1 of 1 point was not measured: the time limit of at_most= ended the rounds." in unknown.stdout
    )
    assert (passed.returncode, failed.returncode) == (0, 1)


MISTAKES = {
    ("b=HEAD",): "a is missing: write a=COMMIT, or leave b out, too.",
    ("a=nothing",): "a=nothing names no commit, branch or tag of this repository, no provider of quick, ",
    ("a=HEAD~1", "b=mul/64"): "b=mul/64: write two commits, two configurations, two environments, ",
    ("a=mul", "b=blocks/3x4x5"): "can't read '3x4x5' in 'blocks/3x4x5'",
    ("a=blocks/256", "b=blocks/256"): "are the same: write two configurations",
    (
        "a=HEAD~1",
        "rounds=5",
        "most_rounds=2",
    ): "most_rounds is less than rounds: write a larger most_rounds=N",
    ("a=HEAD~1", "undecided=maybe"): "undecided: ",
    ("a=HEAD~1", "fail_on=slower"): "unknown option of quick 'fail_on'.",
    ("a=HEAD~1", "by=2"): "by: write a percentage, as 2%, not 2.",
    ("a=HEAD~1", "at_most=10"): "at_most: write seconds, minutes or hours, as 90s, 10m or 1h, not 10.",
    ("a=HEAD~1", "device=cuda"): "GPU",
    ("a=HEAD~3",): "a=HEAD~3 names no commit",
    ("a=fast", "kernel=newer"): "fast: unknown kernel 'newer'",
    ("a=fast", "bisect=true", "self_test=true"): "with itself: leave a= and bisect= out",
}


@pytest.fixture(scope="module")
def mistakes(tree: Tree) -> dict[tuple[str, ...], subprocess.CompletedProcess[str]]:
    """Return the finished command of each mistake."""
    words = [("size=64", *([] if "kernel=newer" in one else ["kernel=quick"]), *one) for one in MISTAKES]
    return dict(zip(MISTAKES, tree.in_turn("compare", *words), strict=True))


@pytest.mark.parametrize("options", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_sentence(
    tree: Tree, mistakes: dict[tuple[str, ...], subprocess.CompletedProcess[str]], options: tuple[str, ...]
) -> None:
    done = mistakes[options]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert MISTAKES[options] in done.stderr
    assert has_no_worktree(tree)


def test_two_machines_are_set_side_by_side_by_what_they_left(tmp_path: Path) -> None:
    """The fastest row of each machine is compared, with times of finals where both machines have them."""
    made = cpu_tree(tmp_path)
    h200 = measurement("softmax", "cuda", 4096, median_us=15.0, block_size=4096)
    h100 = measurement("softmax", "cuda", 4096, median_us=21.0, block_size=8192, gpu=H100)
    alone = measurement("softmax", "torch", 4096, median_us=50.0)
    write_finals(made.root / "results", [final(h200, 16.0), final(alone, 48.0, (h200, 16.0, "slower"))])
    write_finals(made.root / "results", [final(h100, 24.0)])
    swept = [h200, h100, measurement("gelu", "cuda", 1024)]
    swept.append(measurement("softmax", "cuda", 4096, median_us=18.0, block_size=8192))
    write_results(made.root / "results", swept)
    done, pinned, aside, lone, every, same, half, neither, timed = made.in_turn(
        "compare",
        ["kernel=softmax", f"a={H200}", f"b={H100}", "format=markdown"],
        ["kernel=softmax", f"a={H200}", f"b={H100}", "format=markdown", "size=4096", "provider=cuda"],
        ["kernel=softmax", f"a={H200}", f"b={H100}", "columns=1024"],
        [f"a={H200}", f"b={H100}", "columns=1024"],
        [f"a={H200}", f"b={H100}", "format=markdown"],
        ["kernel=softmax", f"a={H200}", f"b={H200}"],
        ["kernel=softmax", f"a={H200}", "b=HEAD"],
        ["a=HEAD"],
        [f"a={H200}", f"b={H100}", "undecided=pass", "at_most=10m"],
    )
    assert done.returncode == 0, done.stderr
    (met,) = [line for line in done.stdout.splitlines() if "| cuda 4096x4w |" in line]
    cells = [cell.strip() for cell in met.strip("|").split("|")]
    assert cells[:5] == ["4096 float32", "cuda 4096x4w", "cuda 8192x4w", "memory", "finals"]
    assert cells[5:] == ["16.0", "24.0", "1.50", "1.42", "", ""], "by finals, as both had them"
    assert "bound by memory: 1 problem, b / a 1.50; by their ceilings 1.42." in done.stdout
    assert "They were not measured together: no verdict." in done.stdout
    assert every.stdout == pinned.stdout == done.stdout, "gelu has no problem in common"
    assert aside.returncode == lone.returncode == 2
    assert "have no measured problem of softmax in common that these options choose" in aside.stderr
    assert "unknown option 'columns'." in lone.stderr and "Names of a kernel need kernel=NAME." in lone.stderr
    assert same.returncode == 2 and "a and b are both nvidia-h200" in same.stderr
    assert half.returncode == 2 and half.stderr == (
        f"error: a={H200} is a machine, and b=HEAD has no results; other machines with results: {H100}.\n"
    )
    assert neither.returncode == 2 and "a=HEAD: no commit of " in neither.stderr
    assert timed.returncode == 2 and "without a verdict: leave at_most= and undecided= out." in timed.stderr
