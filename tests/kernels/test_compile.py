"""Every Triton provider compiles for every GPU generation in use, on any host, as its entry launches it."""

import json
import os
import sys
from typing import Any

import pytest

from kernel_pipeline import loading
from tests.kernels.compile_everything import SIZES, TRITON, label, wanted
from tests.kernels.kernel_cases import Case, MatrixCase, params
from tests.processes import completed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("compile")]

CASES = params(TRITON)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One row a binary, compiled anew without the interpreter in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    done = completed(
        [sys.executable, "-m", "tests.kernels.compile_everything"], cwd=loading.ROOT.parent, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_of(case: Case, compiled: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row for row in compiled if (row["kernel"], row["provider"]) == (case.loaded.name, case.provider.name)
    ]


@pytest.mark.parametrize("case", CASES)
def test_every_architecture_word_and_size(case: Case, compiled: list[dict[str, Any]]) -> None:
    rows = rows_of(case, compiled)
    assert all(row["cubin_bytes"] > 0 for row in rows)
    asked = list(wanted(case))
    assert {(row["target"], row["words"]) for row in rows} == {(one[0], label(one[1])) for one in asked}
    # A provider that is for small problems alone has none of the others.
    assert {row["size"] for row in rows} == {one[2] for one in asked} <= set(SIZES)
    assert len(rows) >= len(asked)


@pytest.mark.parametrize("case", CASES)
def test_the_parameters_reach_the_compiler(case: Case, compiled: list[dict[str, Any]]) -> None:
    """Those of one launch at least, where a call makes several."""
    calls: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(case, compiled):
        asked = [row[name] for name in ("target", "words", "size", "parameters")]
        calls.setdefault(json.dumps(asked), []).append(row)
    assert calls
    for binaries in calls.values():
        for name, value in binaries[0]["parameters"].items():
            if name in ("num_warps", "num_stages"):
                assert any(row[name] == value for row in binaries), name
            elif name.startswith("block"):
                assert any(value in row["constants"] for row in binaries), name


@pytest.mark.parametrize("case", params(case for case in TRITON if isinstance(case, MatrixCase)))
def test_loads_are_vectorized_where_rows_are_aligned(case: Case, compiled: list[dict[str, Any]]) -> None:
    rows = [row for row in rows_of(case, compiled) if row["size"] == 4096 and row["num_warps"] == 8]
    assert rows
    # The launch with enough elements per thread for a vector of two words in every dtype.
    assert all(row["vector_loads"] > 0 for row in rows)
