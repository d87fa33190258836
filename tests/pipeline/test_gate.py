"""The steps of the GitHub action and of the GitLab job, run as shell on a CPU."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import ROOT
from tests.planted.tree import Tree, cpu_tree, trust_busy_cores
from tests.processes import completed
from tests.repository import ALONE, commit, git

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
    pytest.mark.xdist_group("gate"),
]

OPTIONS = (
    "preset=smoke device=cpu timing.max_seconds=0.002 size=64 provider=mul rounds=2 most_rounds=8 by=180%"
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Return a repository in which ``change`` makes a kernel slower, and ``main`` has gone on since."""
    made = cpu_tree(tmp_path_factory.mktemp("gate"), "quick")
    trust_busy_cores(made)
    shutil.copytree(ROOT / "ci", made.root / "ci")
    (made.root / ".gitignore").write_text("outputs/\nlocal/\nbuild/\n__pycache__/\n")
    git(made.root, "init", "--quiet", "--initial-branch=main")
    commit(made.root)
    git(made.root, "checkout", "--quiet", "-b", "change")
    source = made.root / "kernels/quick/torch.py"
    fast = source.read_text()
    source.write_text(fast.replace("return x * 2", "return [x * 2 for _ in range(300)][-1]"))
    commit(made.root, message="Slower")
    git(made.root, "checkout", "--quiet", "-b", "other", "main")
    (made.root / "notes.md").write_text("no kernel")
    commit(made.root, message="No kernel")
    git(made.root, "checkout", "--quiet", "main")
    source.write_text(fast.replace("x * 2", "x + x"))
    commit(made.root, message="Another change, not of the pull request")
    git(made.root, "checkout", "--quiet", "change")
    return made


def shell(tree: Tree, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return completed(["bash", "-e", "-c", script], cwd=tree.root, env=tree.variables | ALONE | variables)


def step(tree: Tree, summary: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the action's step that compares, with GitHub's expressions filled in."""
    action: dict[str, Any] = yaml.safe_load((ROOT / "ci/action.yml").read_text())
    given = {name: one.get("default", "") for name, one in action["inputs"].items()} | inputs
    known = {f"inputs.{name}": value for name, value in given.items()} | {
        "github.workspace": str(tree.root),
        "runner.temp": str(summary.parent),
        "github.server_url": "https://github.example",
        "github.repository": "me/mine",
        "github.run_id": "7",
    }
    (gate,) = [one for one in action["runs"]["steps"] if "gate.sh" in one.get("run", "")]

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ *([\w.]+) *\}\}", lambda match: known[match[1]], text)

    variables = {name: filled(value) for name, value in gate["env"].items()}
    places = {"GITHUB_ACTION_PATH": str(tree.root / "ci"), "GITHUB_STEP_SUMMARY": str(summary)}
    return shell(tree, gate["run"], **variables, **places)


def test_the_action_fails_a_slower_change_and_leaves_a_comment(tree: Tree, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    base, change = git(tree.root, "rev-parse", "main~1"), git(tree.root, "rev-parse", "change")
    inputs = {"kernel": "quick", "options": OPTIONS, "python": sys.executable, "head": change}
    done = step(tree, summary, base="main", **inputs)
    assert done.returncode == 1, done.stdout + done.stderr
    text = (tmp_path / "gate/comment.md").read_text()
    assert summary.read_text() == text
    assert text.startswith("### Kernel times: a regression\n\n> error: quick: 1 point slower.\n")
    assert "| 64 float32 | mul | mul |" in text
    assert f"a is {base}, b is {change}" in text, "the merge base: main's own change is not judged"
    assert "(https://github.example/me/mine/actions/runs/7)" in text
    assert list((tmp_path / "gate/comparisons").rglob("*.jsonl")), "the samples are in the artifact"


def test_the_action_passes_what_touches_no_kernel_and_says_what_it_lacks(tree: Tree, tmp_path: Path) -> None:
    inputs = {"kernel": "all", "options": OPTIONS, "python": sys.executable}
    inputs["options"] = OPTIONS.replace(" size=64 provider=mul", "")
    done = step(tree, tmp_path / "summary.md", base="main", head="other", **inputs)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "### Kernel times: no regression" in done.stdout and "Nothing to compare: " in done.stdout
    lacking = step(tree, tmp_path / "summary.md", base="nowhere", head="other", **inputs)
    assert lacking.returncode == 2
    assert "error: " in lacking.stderr and "fetch all of it" in lacking.stderr
    wrong = step(
        tree, tmp_path / "summary.md", base="main", head="change", kernel="nope", python=sys.executable
    )
    assert wrong.returncode == 2 and "unknown kernel 'nope'" in (tmp_path / "summary.md").read_text()


def test_the_job_of_gitlab_does_the_same(tree: Tree, tmp_path: Path) -> None:
    job: dict[str, Any] = yaml.safe_load((ROOT / "ci/gitlab.yml").read_text())["kernel-gate"]
    variables = {name: str(value) for name, value in job["variables"].items()}
    known = {
        "CI_PROJECT_DIR": str(tree.root),
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": git(tree.root, "rev-parse", "main"),
        "CI_JOB_URL": "https://gitlab.example/jobs/7",
    }
    for name, value in known.items():
        variables = {key: text.replace(f"${name}", value) for key, text in variables.items()}
    mine = {"GATE_OUTPUT": str(tmp_path / "gate"), "GATE_PYTHON": sys.executable, "GATE_KERNEL": "quick"}
    done = shell(
        tree,
        "\n".join([*job["script"], *job["after_script"]]),
        **variables | mine | {"GATE_OPTIONS": f"{OPTIONS} at_most=0.01s"},
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert job["allow_failure"]["exit_codes"] == 3
    text = (tmp_path / "gate/comment.md").read_text()
    assert text.startswith("### Kernel times: undecided") and "(https://gitlab.example/jobs/7)" in text
    assert os.access(ROOT / "ci/gate.sh", os.X_OK)
