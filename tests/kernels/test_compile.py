"""Every Triton provider compiles for every GPU generation in use, on any host, as its wrapper launches it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import kernels
from kernels.contract import DTYPES
from tests.kernels.compile_everything import ARCHITECTURES, SHAPES
from tests.kernels.kernel_cases import EVERY, Case, params

pytestmark = pytest.mark.xdist_group("compile")

TRITON = params(case for case in EVERY if case.provider.is_triton)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One row a binary, compiled anew without the interpreter in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_everything"],
        cwd=kernels.ROOT.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def of(case: Case, compiled: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row for row in compiled if (row["kernel"], row["provider"]) == (case.kernel.name, case.provider.name)
    ]


@pytest.mark.parametrize("case", TRITON)
def test_every_architecture_dtype_and_shape(case: Case, compiled: list[dict[str, Any]]) -> None:
    rows = of(case, compiled)
    assert all(row["cubin_bytes"] > 0 for row in rows)
    assert {(row["target"], row["dtype"]) for row in rows} == {(a, d) for a in ARCHITECTURES for d in DTYPES}
    assert {row["columns"] for row in rows} == {columns for _, columns in SHAPES}


@pytest.mark.parametrize("case", TRITON)
def test_the_launch_parameters_reach_the_compiler(case: Case, compiled: list[dict[str, Any]]) -> None:
    for row in of(case, compiled):
        axes = row["axes"]
        assert row["num_warps"] == axes.get("num_warps", row["num_warps"])
        assert "block_size" not in axes or axes["block_size"] in row["constants"]


@pytest.mark.parametrize("case", TRITON)
def test_loads_are_vectorized_where_rows_are_aligned(case: Case, compiled: list[dict[str, Any]]) -> None:
    rows = [row for row in of(case, compiled) if row["columns"] == 4096]
    # The launch with enough elements a thread for a vector of two words in every dtype.
    assert all(row["vector_loads"] > 0 for row in rows if row["num_warps"] == 8)
