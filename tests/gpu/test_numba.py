"""Numba on a GPU: on torch's stream, within torch's graphs, timed as all others."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.execution import instance
from kernel_pipeline.execution.launch_recorder import recorded
from kernel_pipeline.records.point import Point
from pipeline import ROOT
from tests.processes import completed

pytestmark = pytest.mark.gpu

pytest.importorskip("numba_cuda", reason="Numba is not installed: pip install '.[numba]'")


@pytest.fixture
def add() -> Callable[..., torch.Tensor]:
    loaded = loading.load("vector_add")
    return loaded.entry(loaded.kernel.provider("numba"))


def test_a_launch_is_on_the_current_stream_of_torch(add: Callable[..., torch.Tensor]) -> None:
    """A launch waits for earlier work on the stream, which writes its inputs."""
    x = torch.zeros(1 << 20, device="cuda")
    add(x, x, threads=256)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(1.5)
        out = add(x, x, threads=256)
    stream.synchronize()
    assert (out == 3.0).all()


def test_a_captured_launch_is_replayed_on_what_the_inputs_are_then(add: Callable[..., torch.Tensor]) -> None:
    x, y = torch.ones(1000003, device="cuda"), torch.ones(1000003, device="cuda")
    add(x, y, threads=256)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = add(x, y, threads=256)
    for value in (2.0, 5.0):
        x.fill_(value)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert (out == value + 1).all()


def test_a_launch_is_recorded() -> None:
    point = Point(
        kernel="softmax",
        provider="numba",
        problem={"rows": 8, "columns": 100, "dtype": "float32"},
        parameters={"threads": 128},
    )
    found = instance.load_instance("softmax", point)
    inputs = found.inputs(torch.device("cuda"), 0)
    with recorded(found) as told:
        found.call(*inputs)
    (launch,) = told() or ()
    assert (launch.function, launch.grid, launch.block) == ("_softmax", (8, 1, 1), (128, 1, 1))
    assert launch.shared_bytes == 4 * (128 + 32)


@pytest.mark.long
def test_every_numba_provider_has_a_time_by_graph_and_a_host_cost(tmp_path: Path) -> None:
    chosen = ["kernel=vector_add,square,softmax,matmul", "provider=numba", "preset=smoke", "device=cuda"]
    for stage in ("sweep", "profile"):
        extra = ["tracking=none"] if stage == "sweep" else [f"artifacts={tmp_path}/artifacts"]
        done = completed(
            [sys.executable, "-m", f"pipeline.{stage}", *chosen, f"output={tmp_path}", *extra],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp_path)},  # a lock of its own: no time is looked at
        )
        assert done.returncode == 0, done.stderr[-3000:]
    for kernel in ("vector_add", "square", "softmax", "matmul"):
        (ledger,) = (tmp_path / "timings" / kernel).glob("*.jsonl")
        rows = [json.loads(line) for line in ledger.read_text().splitlines()]
        outcomes = [row["outcome"] for row in rows if row["point"]["provider"] == "numba"]
        assert outcomes and all(one["status"] == "ok" for one in outcomes)
        # A problem of a few bytes would need more inputs than a graph may hold, and is timed by events.
        assert outcomes[-1]["timing"]["timer"] == "graph"
        (profile,) = (tmp_path / "profile" / kernel).glob("*.jsonl")
        shown = [json.loads(line) for line in profile.read_text().splitlines()]
        assert shown and all(row["launches"] == 1 and row["host_us"] > 0 for row in shown)
