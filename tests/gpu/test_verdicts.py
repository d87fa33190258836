"""A sweep on a GPU with outputs of every dtype and with a kernel's own comparison; the ring's inputs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kernel_pipeline.execution import instance
from kernel_pipeline.machine import device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from kernel_pipeline.timing.stopwatch import ALIGNMENT, ring
from tests.planted.kinds import DTYPES
from tests.planted.tree import PLANTED, Tree

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def statuses(tree: Tree, kernel: str) -> dict[tuple[str, str], tuple[str, str | None]]:
    """The status of each provider, by dtype."""
    return {
        (row.point.provider, str(row.point.problem["dtype"])): (row.outcome.status, row.outcome.error)
        for row in tree.rows(kernel)
    }


@pytest.mark.long
def test_right_is_right_and_wrong_is_wrong_in_every_dtype(tmp_path: Path) -> None:
    """Outputs with one wrong bit, half unwritten, and without imaginary parts. Those that are wrong in each
    element are in tests/kernel_pipeline/execution/test_dtypes.py."""
    tree = Tree(tmp_path, "kinds")
    tree.know_ceilings(device.resolve("cuda"))
    providers = "provider=[torch,off_by_one,half_written,real_alone]"
    done = tree.sweep("kernel=kinds", "device=cuda", f"dtype=[{','.join(DTYPES)}]", providers)
    assert (done.returncode, done.stderr) == (0, "")
    found = statuses(tree, "kinds")
    for dtype in DTYPES:
        assert found["torch", dtype] == ("ok", None)
        for provider in ("off_by_one", "half_written"):
            assert found[provider, dtype][0] == "incorrect", (provider, dtype)
        real = "incorrect" if dtype.startswith("complex") else "ok"
        assert found["real_alone", dtype][0] == real


@pytest.mark.long
def test_a_kernel_that_compares_by_itself(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "top")
    tree.know_ceilings(device.resolve("cuda"))
    done = tree.sweep("kernel=top", "device=cuda")
    assert (done.returncode, done.stderr) == (0, "")
    found = statuses(tree, "top")
    right = {provider for (provider, dtype), (status, _) in found.items() if status == "ok"}
    assert right == {"torch", "by_sort", "twice_the_first"}, "the last has no ties in float32"
    assert found["twice_the_first", "bfloat16"] == ("incorrect", "first call: some places are named twice")


@pytest.mark.long
def test_structures_workspaces_and_outputs_whose_size_depends_on_the_data(tmp_path: Path) -> None:
    rights = {
        "grouped": {"torch", "compiled", "never_biased"},  # half of its problems have no bias
        "selected": {"torch", "by_nonzero"},
        "handed": {"torch", "triton"},
    }
    tree = Tree(tmp_path, *rights)
    tree.know_ceilings(device.resolve("cuda"))
    done = tree.sweep(f"kernel={','.join(rights)}", "device=cuda", "size=64")
    assert (done.returncode, done.stderr) == (0, "")
    for kernel, right in rights.items():
        rows = tree.rows(kernel)
        assert {row.point.provider for row in rows if row.outcome.status == "ok"} == right
        assert {row.outcome.status for row in rows} == {"ok", "incorrect"}


@pytest.mark.long
def test_prepared_weights_and_random_outputs(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "linear", "dropout")
    tree.know_ceilings(device.resolve("cuda"))
    done = tree.sweep("kernel=linear,dropout", "device=cuda", "audit=all")
    assert done.stderr == ""
    linear, dropout = (
        {row.point.provider: row.outcome for row in tree.rows(kernel)} for kernel in ("linear", "dropout")
    )
    # A graph that was captured before holds no answer computed ahead: ``ahead`` is honest in its replays.
    assert {name for name, outcome in linear.items() if outcome.status == "ok"} - {"ahead"} == {
        *("torch", "transposed", "viewed")
    }, {name: outcome.error for name, outcome in linear.items()}
    assert {linear[name].status for name in ("keeps", "spoils", "writes")} == {"incorrect"}
    assert {linear[name].status for name in ("listed", "ragged")} == {"runtime_error"}
    assert linear["transposed"].prepare_ms is not None and linear["torch"].prepare_ms is None
    errors = {name: outcome.error for name, outcome in dropout.items()}
    right = {name for name, outcome in dropout.items() if outcome.status == "ok"}
    assert right == {"torch", "by_parts"}, errors
    assert {dropout[name].status for name in ("more", "pairs", "unscaled")} == {"incorrect"}, errors
    assert all(dropout[name].peak_mib is not None for name in right)
    assert all(dropout[name].host_us for name in right), dropout


@pytest.mark.alone
def test_calls_of_which_an_audit_makes_few_are_audited(tmp_path: Path) -> None:
    """Three and four sets: fewer than outputs may be shown."""
    tree = Tree(tmp_path)
    tree.know_ceilings(device.resolve("cuda"))
    options = ("size=4096", "dtype=float32", "provider=[torch,triton_naive]", "audit=all")
    done = tree.sweep("kernel=matmul", "device=cuda", "preset=quick", *options)
    assert (done.returncode, done.stderr) == (0, "")
    for row in tree.rows("matmul"):
        assert (row.outcome.status, row.outcome.error) == ("ok", None)
        assert row.outcome.audit_ratio is not None


@pytest.mark.alone
def test_a_kernel_that_loads_with_evict_first_is_timed_over_a_large_ring(tmp_path: Path) -> None:
    """Over the usual ring it is 15 % faster than over inputs that were never used, with all its work done."""
    tree = Tree(tmp_path)
    tree.know_ceilings(device.resolve("cuda"))
    options = ("rows=4096", "columns=1024", "dtype=bfloat16", "provider=[torch,torch_compile]", "audit=all")
    done = tree.sweep("kernel=layernorm", "device=cuda", *options)
    assert (done.returncode, done.stderr) == (0, "")
    found = {row.point.provider: row.outcome for row in tree.rows("layernorm")}
    for provider, is_large in {"torch": False, "torch_compile": True}.items():
        outcome = found[provider]
        assert (outcome.status, outcome.error) == ("ok", None)
        assert outcome.timing is not None and outcome.state is not None
        # On a busy host an audit may decide nothing, which the state says.
        assert outcome.timing.large_ring == is_large or not outcome.state.valid, provider


@pytest.mark.parametrize("sets", [2, 3, 300, 5000])
def test_a_ring_that_the_kernel_makes_has_no_equal_neighbours(sets: int) -> None:
    where, cuda = str(PLANTED / "top"), torch.device("cuda")
    problem = Values({"rows": 3, "columns": 1000, "largest": 8, "dtype": "float32"})
    found = instance.load_instance(where, Point(kernel="top", provider="torch", problem=problem))
    made = ring(found.inputs(cuda, 0), sets, found.another(cuda))
    assert len({x.data_ptr() for (x,) in made}) == sets
    assert {(x.data_ptr() - made[1][0].data_ptr()) % ALIGNMENT for (x,) in made[1:]} == {0}
    assert not any(torch.equal(a, b) for (a,), (b,) in pairwise([*made, made[0]]))
