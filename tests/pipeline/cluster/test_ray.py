"""Sweeps on a Ray cluster of two nodes, both on this host, by the real command."""

import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kernel_pipeline.records.measurement import Measurement
from tests.pipeline.cluster.hosts import Hosts, actors, kill_one, of_ray, until
from tests.planted.tree import Tree, cpu_tree

pytest.importorskip("ray", reason="Ray is not installed: python locks/install.py ray")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

COUNT = 16
"""Points of the kernel that takes next to no time."""

SIZES = "size=" + ",".join(str(64 * number) for number in range(1, COUNT // 2 + 1))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Yield a cluster for all tests of this file. The last of them loses a node of it."""
    made = Hosts(tmp_path_factory.mktemp("hosts"), nodes=2)
    yield made
    made.end()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return cpu_tree(tmp_path, "quick")


def started(tree: Tree, hosts: Hosts, *options: str) -> subprocess.Popen[str]:
    return tree.start("kernel=quick", "cluster=ray", SIZES, *options, variables=hosts.variables)


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    return out, err


def lines(tree: Tree) -> list[str]:
    found = list((tree.root / "outputs").glob("timings/quick/*.jsonl"))
    return found[0].read_text().splitlines() if found else []


def wait_for_rows(tree: Tree, process: subprocess.Popen[str], count: int) -> None:
    until(lambda: len(lines(tree)) >= count or process.poll() is not None)
    assert process.poll() is None, process.communicate()


def whole(tree: Tree) -> set[str]:
    """The devices that measured; every point is there once."""
    rows = tree.rows("quick")
    assert len(rows) == len({row.point for row in rows}) == COUNT
    sound(rows)
    return {row.origin.device for row in rows}


def sound(rows: Sequence[Measurement]) -> None:
    """No point failed. On a busy machine one may look slower from outside than it was timed."""
    failed = [row.outcome.error or "" for row in rows if row.outcome.status != "ok"]
    assert [error for error in failed if "but from outside" not in error] == []


def test_ctrl_c_ends_all_that_was_started_here(tree: Tree) -> None:
    before = set(of_ray())
    process = tree.start("kernel=quick", "cluster=ray-local", SIZES)
    wait_for_rows(tree, process, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, out + err
    assert "Stopped." in out + err
    until(lambda: actors() == [] and tree.workers() == [] and set(of_ray()) <= before, 30)
    sound(tree.rows("quick"))


def test_two_nodes_share_a_sweep(tree: Tree, hosts: Hosts) -> None:
    out, _ = ended(started(tree, hosts))
    assert f"{COUNT} points measured" in out
    assert (
        out.count(
            f"Rows don't name the commit that they were measured at: {tree.root} is not in a git repository"
        )
        == 1
    )
    assert whole(tree) == {"node1/cpu", "node2/cpu"}
    shares = re.findall(r"(node\d/cpu): (\d+) points?, ([\d.]+) % of the time measuring, .* % waiting", out)
    assert [name for name, _, _ in shares] == ["node1/cpu", "node2/cpu"], out
    assert sum(int(points) for _, points, _ in shares) == COUNT
    assert all(0 < float(measuring) < 100 for _, _, measuring in shares)
    until(lambda: actors() == [] and tree.workers() == [], 30)


@pytest.mark.long
def test_what_a_lost_actor_had_is_measured(tree: Tree, hosts: Hosts) -> None:
    process = started(tree, hosts)
    wait_for_rows(tree, process, 4)
    kill_one()
    out, _ = ended(process)
    assert "was lost; the others measure its points" in out
    assert f"{COUNT} points measured" in out
    whole(tree)


@pytest.mark.long
def test_after_the_command_was_killed_the_same_one_goes_on(tree: Tree, hosts: Hosts) -> None:
    process = started(tree, hosts)
    wait_for_rows(tree, process, 4)
    process.kill()
    process.communicate()
    until(lambda: actors() == [])
    before = {line for line in lines(tree) if line.endswith("}")}
    out, _ = ended(started(tree, hosts))
    assert f"{COUNT - len(before)} points measured" in out
    whole(tree)


@pytest.mark.long
def test_what_a_lost_node_had_is_measured_on_the_other(tree: Tree, hosts: Hosts) -> None:
    process = started(tree, hosts)
    wait_for_rows(tree, process, 4)
    hosts.lose(hosts.nodes[1])
    out, _ = ended(process)
    assert f"{COUNT} points measured" in out
    whole(tree)
