"""A kernel in another repository, given by its folder, is measured and inspected like any other."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from pipeline.points import catalog
from tests.planted import outside
from tests.planted.tree import PLANTED, Tree, cpu_tree
from tests.project import python
from tests.repository import commit

HOT = "timing.cache=hot"
KERNEL = "kernel=../elsewhere/tripled"

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Return a copy of this repository, beside another folder with a kernel."""
    made = cpu_tree(tmp_path)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PLANTED / "tripled", tmp_path / "elsewhere" / "tripled", ignore=ignored)
    return made


def test_a_kernel_that_imports_the_contract_by_its_old_name_is_told_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("from kernels.contract import Kernel\n")
    with pytest.raises(UserError, match=r"imports kernels\.contract: write kernel_pipeline\.contract\."):
        catalog.find(str(tmp_path / "mine"))


@pytest.mark.slow
def test_a_kernel_outside_is_swept_under_its_own_name_and_commit(tree: Tree) -> None:
    elsewhere = tree.root.parent / "elsewhere"
    (elsewhere / ".gitignore").write_text("__pycache__\n")
    (tree.root / ".gitignore").write_text("__pycache__\n/build/\n/outputs/\n/local/\n")
    own, tool = commit(elsewhere), commit(tree.root)
    tree.run(KERNEL, HOT)
    rows = tree.rows("tripled")
    found = {(row.point.provider, row.outcome.status) for row in rows}
    assert found == {("torch", "ok"), ("blocks", "verified"), ("cpp", "ok")}
    assert len(rows) == 2 * (1 + 2 + 1)
    assert {row.point.kernel for row in rows} == {"tripled"}
    assert {(row.origin.commit, row.origin.tool, row.origin.dirty) for row in rows} == {(own, tool, False)}
    assert {path.name for path in (tree.root / "build/outside").glob("*/*.so")} == {"cpp.so"}
    git_status = ["git", "status", "--porcelain"]
    assert subprocess.run(git_status, cwd=elsewhere, capture_output=True, check=True).stdout == b""

    # The same folder by another path is the same kernel. Edited comments measure nothing again.
    helper, header = elsewhere / "tripled/shared.py", elsewhere / "tripled/factor.h"
    helper.write_text(helper.read_text() + "\n# The same.\n")
    header.write_text(header.read_text() + "\n// The same.\n")
    again = tree.sweep(f"kernel={elsewhere / 'tripled'}", HOT)
    assert "Nothing to measure" in again.stdout, again.stdout + again.stderr

    helper.write_text(helper.read_text().replace("x + x + x", "3 * x"))
    header.write_text(header.read_text().replace("3.0f", "2.0f"))
    edited = tree.sweep(KERNEL, HOT)
    assert "6 points measured" in edited.stdout
    new = {row.point.provider: row for row in tree.rows("tripled")}
    assert new["cpp"].outcome.status == "incorrect"
    assert (new["blocks"].origin.commit, new["blocks"].origin.dirty) == (own, True)
    assert not new["torch"].origin.dirty


@pytest.mark.slow
def test_two_kernels_outside_of_one_name_share_no_ledger(tmp_path: Path) -> None:
    tree = cpu_tree(tmp_path)
    (tmp_path / "another").mkdir()
    one, other = outside.write(tmp_path), outside.write(tmp_path / "another")
    tree.run("kernel=../double", "n=8", HOT)
    both = f"{other} and {one} would share a ledger, which is named double after the folder: rename one of"
    for kernel in ("../another/double", f"{one},{other}"):
        refused = tree.sweep(f"kernel={kernel}", "n=8", HOT)
        assert (refused.returncode, refused.stderr.startswith(f"error: {both}")) == (2, True), refused.stderr
    tree.run(f"kernel={other}", "n=8", HOT, "output=others")

    # The folder is not in git, so nothing can measure it as it was; in git its HEAD can.
    outside.edit(one)
    assert "was us: before the source was edited, and not in the same run.\n" in tree.run(
        "kernel=../double", "n=8", HOT
    )
    (one / ".gitignore").write_text("__pycache__\n")
    commit(one)
    (one / "pieces.py").write_text((one / "pieces.py").read_text().replace("piece + piece", "2 * piece"))
    assert "; python -m pipeline.compare kernel=../double a=HEAD measures both side by side." in tree.run(
        "kernel=../double", "n=8", HOT
    )
    one.rename(tmp_path / "gone")
    tree.run(f"kernel={other}", "n=8", HOT)


@pytest.mark.long
@pytest.mark.slow
def test_a_kernel_outside_is_looked_into_reported_and_published(tree: Tree) -> None:
    def run(*words: str) -> str:
        done = python("-m", *words, cwd=tree.root, TMPDIR=str(tree.temporary), COLUMNS="200")
        assert done.returncode == 0, done.stderr
        return done.stdout

    # Without git, the rows have commit "unknown". The kernel includes a header of this repository in angle
    # brackets.
    assert tree.sweep(KERNEL, HOT, "provider=[torch,blocks]", "output=local/results").returncode == 0
    assert {row.origin.commit for row in tree.rows("tripled", "local/results")} == {"unknown"}
    of_points = (KERNEL, "preset=smoke", "device=cpu", HOT, "output=local/results", "artifacts=artifacts")
    run("pipeline.profile", *of_points, "provider=torch")
    assert list((tree.root / "local/results/profile/tripled").glob("*.jsonl"))
    run("pipeline.codegen", *of_points, "provider=blocks")
    assert list((tree.root / "local/results/codegen/tripled").glob("*.jsonl"))
    run("pipeline.build", KERNEL, "device=cpu", "output=local/results")

    run("pipeline.report", "input=local/results", "output=reports_here", "device=cpu")
    assert "tripled" in (tree.root / "reports_here/report.md").read_text()
    said = run(
        "pipeline.publish", "input=local/results", "reports=reports_here", "tracking.uri=sqlite:///mlflow.db"
    )
    assert "tripled" in said or (tree.root / "mlflow.db").is_file()
