"""The stages profile, counters and codegen on a real GPU."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pipeline import ROOT
from tests.processes import completed

pytestmark = pytest.mark.gpu


def rows(folder: Path, stage: str, *options: str) -> list[dict[str, Any]]:
    """The rows of a stage on the GPU with the smallest grid. The stage has a lock of its own on the GPU, as
    nothing is timed."""
    fixed = ["preset=smoke", "device=cuda", f"output={folder}", f"artifacts={folder}/artifacts"]
    with tempfile.TemporaryDirectory() as temporary:
        done = completed(
            [sys.executable, "-m", f"pipeline.{stage}", *fixed, *options],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": temporary},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = (folder / stage).glob("*/*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def provider(row: dict[str, Any]) -> str:
    return str(row["point"]["provider"])


def test_unfused_gelu_is_many_launches_and_the_fused_ones_are_one(tmp_path: Path) -> None:
    providers = "provider=[manual,torch,torch_compile,triton,cuda]"
    found = {provider(row): row for row in rows(tmp_path, "profile", "kernel=gelu", providers, "size=1024")}
    assert {name: row["launches"] for name, row in found.items()} == {
        "manual": 8,
        "torch": 1,
        "torch_compile": 1,
        "triton": 1,
        "cuda": 1,
    }
    assert all(row["device_us"] > 0 and row["host_us"] > 0 for row in found.values())
    assert sum(kernel["launches"] for kernel in found["manual"]["kernels"]) == 8


def test_torch_square_is_pow_and_one_vectorized_kernel(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, "profile", "kernel=square", "provider=torch_square", "size=1024")
    assert row["chain"].startswith("aten::square > aten::pow")
    (kernel,) = row["kernels"]
    assert "vectorized_elementwise_kernel" in kernel["name"]


@pytest.mark.alone
def test_counters_are_read_or_say_why_not(tmp_path: Path) -> None:
    """What is counted agrees with what the point is: so many bytes, one launch, its own function."""
    found = rows(tmp_path, "counters", "kernel=softmax", "provider=[torch,triton_row]", "size=4096")
    if found[0]["status"] == "unavailable":
        assert all(row["reason"] and row["fix"] for row in found)
        pytest.skip(f"counters are unavailable here: {found[0]['reason']}")
    assert {provider(row) for row in found} == {"torch", "triton_row"}
    matrix = 4 * 4096 * 4096
    for row in found:
        assert row["status"] == "ok", row["sentence"]
        assert row["duration_us"] > 0 and row["registers"] > 0 and row["rules"]
        # Each reads the matrix once, with the caches cleared before, and little beside it.
        assert row["dram_read_bytes"] == pytest.approx(matrix, rel=0.1)
        assert 0 < row["memory_throughput_pct"] <= 100
        assert row["sentence"] and row["stalls"]
    report = tmp_path / "artifacts" / found[0]["report"]
    assert report.stat().st_size > 10_000


@pytest.mark.long
def test_code_is_joined_to_the_points_that_launch_it(tmp_path: Path) -> None:
    """Of layernorm, whose functions have a template among their arguments."""
    found = rows(tmp_path, "codegen", "kernel=layernorm", "provider=[triton_row,cuda]", "size=64")
    joined = [row for row in found if row.get("native") and row.get("launch_known")]
    assert {provider(row) for row in joined} == {"triton_row", "cuda"}
    for row in joined:
        assert row["key"] and row["registers"] > 0 and row["threads"] % 32 == 0
        assert 0 < row["occupancy"] <= 1
