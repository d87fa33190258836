"""A sweep of providers with faults of a GPU: the real command in a copy of the tree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine import device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from tests.planted.tree import Tree, size

pytestmark = pytest.mark.gpu

STATUSES = {
    "right": ("ok", None),
    "tells_openmp": ("ok", None),
    "right_once": ("incorrect", "on other inputs: "),
    "writes_once": ("incorrect", "on other inputs: "),
    "remembers": ("incorrect", "on other inputs: "),
    "never_writes": ("incorrect", "first call: "),
    "synchronizes": ("ok", None),
    "allocates": ("out_of_memory", "out of memory"),
    "illegal_access": ("runtime_error", "illegal memory access"),
    "triton_right": ("ok", None),
    "endless": ("timeout", "no answer in 10 s; its worker was replaced"),
    "too_much_shared": ("runtime_error", "out of resource: shared memory"),
    "does_not_compile": ("compile_error", "CompilationError: "),
    "right_at_the_end": ("ok", None),
}


@pytest.mark.long
def test_a_fault_gets_its_status_and_later_points_are_unharmed(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "gpu_faults")
    tree.know_ceilings(device.resolve("cuda"))
    done = tree.sweep("kernel=gpu_faults", "device=cuda", "point_timeout_s=10")
    assert (done.returncode, done.stderr) == (0, "")
    assert tree.workers() == []
    assert "tells_openmp changed its worker process" not in done.stdout
    rows = {row.point.provider: row for row in tree.rows("gpu_faults")}
    assert set(rows) == set(STATUSES)
    for provider, (status, error) in STATUSES.items():
        outcome = rows[provider].outcome
        assert outcome.status == status, (provider, outcome.error)
        if error is None:
            assert outcome.timing is not None
            assert outcome.timing.timer == ("event" if provider == "synchronizes" else "graph"), provider
        else:
            assert outcome.timing is None
            assert error in (outcome.error or ""), provider


@pytest.mark.smoke
def test_workers_that_wait_map_none_of_the_verifiers_memory() -> None:
    """Else the sets of an audit, up to 20 GiB, can't be freed while other providers have their turns."""
    gpu, problem = device.resolve("cuda"), Values({"rows": 8192, "columns": 8192, "dtype": "float32"})
    free = torch.cuda.mem_get_info()[0]
    with Supervisor(gpu, TimingSettings(), 0, 60.0, in_turns=True) as made:
        for provider in ("torch_mul", "torch_square"):
            point = Point(kernel="square", provider=provider, problem=problem)
            assert made.measure("square", point, is_audited=True).status == "ok"
        made._turn_to(None)
        made._released(made._verifier)
        taken = free - torch.cuda.mem_get_info()[0]
    assert taken < 12 << 30, "contexts, and at most a GiB of each worker's own"


@pytest.mark.smoke
def test_a_problem_that_memory_cannot_hold_is_left_out_before_it_is_allocated(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "gpu_faults")
    tree.know_ceilings(device.resolve("cuda"))
    done = tree.sweep("kernel=gpu_faults", "device=cuda", "size=[65536,100000000000000]", "provider=right")
    assert done.returncode == 0, done.stderr
    assert "too large to be verified here" in done.stdout
    (row,) = tree.rows("gpu_faults")
    assert (size(row.point), row.outcome.status) == (65536, "ok")
