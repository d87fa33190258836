"""The search for the first slower commit: in numbers, and by the command in a repository."""

import shutil
from math import log2
from pathlib import Path

import pytest

from pipeline.comparing.bisection import first_slower
from tests.planted.tree import Tree, cpu_tree, trust_busy_cores
from tests.repository import commit, git

COMMITS = [str(number) for number in range(32)]


@pytest.mark.parametrize("slow", range(32))
def test_each_of_32_is_found_in_a_few_steps(slow: int) -> None:
    asked: list[int] = []

    def is_slower(name: str) -> bool:
        asked.append(int(name))
        return int(name) >= slow

    assert list(first_slower(COMMITS, is_slower)) == [str(slow)]
    assert len(asked) == len(set(asked)) <= 2 + log2(len(COMMITS))


def test_unknown_ones_are_gone_round_and_named_where_they_hide_it() -> None:
    def answer(slow: int, *unknown: int) -> list[str]:
        return list(first_slower(COMMITS, lambda name: None if int(name) in unknown else int(name) >= slow))

    assert answer(20, 15, 16, 5, 30) == ["20"]
    assert answer(20, 18, 19) == ["18", "19", "20"]
    assert answer(20, 31) == answer(40) == [], "the last one is not known to be slower"
    assert list(first_slower([], lambda name: True)) == []


def edited(tree: Tree, number: int, body: str) -> str:
    """Commit another body of the provider. Each differs from the others, so that it has a key of its own."""
    path = tree.root / "kernels/quick/torch.py"
    before = path.read_text().partition("def mul")[0]
    head = f"def mul(x: torch.Tensor) -> torch.Tensor:\n    assert x.ndim < {number}\n"
    path.write_text(f"{before}{head}{body}\n")
    return commit(tree.root, message=f"Change {number}")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_planted_commit_is_found_past_two_that_cannot_be_measured(tmp_path: Path) -> None:
    tree = cpu_tree(tmp_path, "quick")
    trust_busy_cores(tree)
    (tree.root / ".gitignore").write_text("outputs/\nlocal/\nbuild/\n__pycache__/\n")
    git(tree.root, "init", "--quiet", "--initial-branch=main")
    commit(tree.root)
    git(tree.root, "tag", "good")
    contract = tree.root / "kernel_pipeline/contract.py"
    text = contract.read_text()
    commits = {}
    slow, fast = "    return [x * 2 for _ in range(300)][-1]", "    return x * 2"
    for number, body in ((11, "    return ("), (12, fast), (13, fast), (14, slow)):
        if number == 12:
            contract.unlink()
        elif not contract.exists():
            contract.write_text(text)
        commits[number] = edited(tree, number, body)
    options = ("kernel=quick", "size=64", "provider=mul", "rounds=2", "most_rounds=8", "by=180%")
    done = tree.sweep(*options, "a=good", "b=HEAD", "bisect=true", command="compare")
    assert done.returncode == 1, done.stdout + done.stderr
    slow = commits[14][:12]
    assert done.stderr.splitlines()[-1].startswith("error: the first commit that is slower than ")
    assert done.stderr.endswith(f" is {slow}.\n"), done.stderr
    assert f"{commits[11][:12]} is skipped: " in done.stdout
    assert f"{commits[12][:12]} is skipped: the kernels of commit" in done.stdout
    assert "Change 14" in done.stdout and "kernels/quick/torch.py" in done.stdout
    assert f"a is {commits[13][:12]}, b is {slow}" in done.stdout
    again = tree.sweep(*options, "a=good", "b=HEAD", "bisect=true", command="compare")
    assert again.stderr == done.stderr and "Nothing to measure" in again.stdout
    assert again.stdout.count("is skipped") == 2
    backwards, of_all, of_the_tree = tree.in_turn(
        "compare",
        [*options, "a=HEAD", "b=good", "bisect=true"],
        ["a=good", "b=HEAD", "bisect=true"],
        [*options, "a=good", "b=tree", "bisect=true"],
    )
    assert backwards.stderr == "error: a=HEAD is no ancestor of b=good: write the older commit as a.\n"
    assert "write kernel=NAME" in of_all.stderr and of_all.returncode == 2
    assert "write a=GOOD b=BAD" in of_the_tree.stderr and of_the_tree.returncode == 2
