"""Sweeps as jobs of a scheduler, by the real command: of a Slurm that runs here, where one can, else of
submitit's own executor. The names of the tests that ran say which."""

import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.cluster import slurm
from tests.pipeline.cluster.hosts import until
from tests.pipeline.cluster.slurm import Slurm
from tests.planted.tree import Tree, cpu_tree

WHY_NOT = slurm.why_not()

SCHEDULER = "submitit_local" if WHY_NOT else "submitit_slurm"

needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins") is None
    or importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None,
    reason="hydra-submitit-launcher is not installed: python locks/install.py slurm",
)

HELD_MUL = """
import time
from pathlib import Path

import torch


def mul(x: torch.Tensor) -> torch.Tensor:
    while x.numel() > 768 and not (Path(__file__).parents[2] / "go").exists():
        time.sleep(0.01)
    return x * 2
"""
"""Holds a sweep at its larger problems, none of which is a control, until the tree has a file ``go``."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm"), needs_submitit]


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm | None]:
    if WHY_NOT:
        yield None
        return
    made = Slurm(tmp_path_factory.mktemp("slurm") / "daemons")
    yield made
    made.end()


def started(tree: Tree, scheduler: Slurm | None, *options: str) -> subprocess.Popen[str]:
    variables = {} if scheduler is None else scheduler.variables
    return tree.start("-m", f"hydra/launcher={SCHEDULER}", *options, variables=variables)


@pytest.mark.parametrize("by", [SCHEDULER])
def test_each_kernel_is_a_job_and_a_ledger(tmp_path: Path, scheduler: Slurm | None, by: str) -> None:
    tree = cpu_tree(tmp_path, "quick", "tuned")
    out, err = started(tree, scheduler, "kernel=quick,tuned").communicate(timeout=240)
    assert "The output of the jobs is in " in out, out + err
    folder = Path(out.rpartition("is in ")[2].strip().removesuffix("."))
    said = [path.read_text() for path in folder.glob("*/*_log.out")]
    assert len(said) == 2 and all("points measured" in one for one in said)
    assert len(tree.rows("quick")) == 4
    assert len(tree.rows("tuned")) == 4
    # What they measured is there for a sweep without a scheduler.
    assert "0 points measured" in tree.sweep("kernel=quick").stdout


@pytest.mark.long
@pytest.mark.parametrize("by", [SCHEDULER])
def test_what_a_job_finds_wrong_is_the_commands_own_end(
    tmp_path: Path, scheduler: Slurm | None, by: str
) -> None:
    tree = cpu_tree(tmp_path, "quick", "doubled")
    process = started(tree, scheduler, "kernel=doubled,quick", "allow=null")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1 and "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("error: ") and "incorrect" in err
    assert len(tree.rows("quick")) == 4, "the other job is no worse for it"
    process = started(tree, scheduler, "kernel=quick", "nosuch=1,2")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 2 and "Traceback" not in err
    assert "unknown option of quick 'nosuch'" in err


@pytest.mark.long
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_a_requeued_job_goes_on(tmp_path: Path, scheduler: Slurm) -> None:
    tree = cpu_tree(tmp_path, "quick")
    # Its first job does not come to the end, however late this host lets Slurm act.
    (tree.root / "kernels" / "quick" / "torch.py").write_text(HELD_MUL)
    sizes = ",".join(str(64 * number) for number in range(1, 17))
    process = started(tree, scheduler, f"size=[{sizes}]", "kernel=quick")
    ledgers = tree.root / "outputs" / "timings" / "quick"

    def rows() -> int:
        """Slurm's signals reach the worker and the judge, too: what they were at is measured again."""
        return sum(path.read_text().count('"status":"ok"') for path in ledgers.glob("*.jsonl"))

    until(lambda: rows() >= 4)
    (job,) = scheduler.jobs("RUNNING")
    scheduler.ask("scontrol", "requeue", job)
    until(lambda: scheduler.jobs("PENDING") == [job])
    before = rows()
    assert before < 32
    (tree.root / "go").touch()
    scheduler.ask("scontrol", "update", f"jobid={job}", "StartTime=now")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    (log,) = (tree.root / "outputs" / "jobs").glob("*/*/*_log.out")
    assert f"{32 - before} points measured" in log.read_text()
    found = tree.rows("quick")
    assert len(found) == len({row.point for row in found}) == 32
    assert {row.outcome.status for row in found} == {"ok"}
    assert len({row.origin.run for row in found}) == 2
