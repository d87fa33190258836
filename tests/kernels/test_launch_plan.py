"""The launch plan of the CUDA row kernels: the code that makes it, compiled without CUDA."""

import ctypes
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernel_pipeline import loading
from kernel_pipeline.contract import ITEM_BYTES, Gpu
from kernels.rows import Matrix
from kernels.rows_plan import STRATEGIES, RowsPlan
from tests.kernels import compiled

H200 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=227 << 10, l2_cache=50 << 20)
A100 = Gpu(capability=(8, 0), multiprocessors=108, shared_memory=163 << 10, l2_cache=40 << 20)

MEASURED = [
    json.loads(line)
    for line in Path(__file__).with_name("launches-nvidia-h200.jsonl").read_text().splitlines()
]
"""Launches that an H200 reported before a plan could be told anything: some of each strategy and cluster."""

OPERATIONS = {"softmax": (0, 0, 8, 8), "rmsnorm": (1, 0, 4, 4), "layernorm": (1, 1, 16, 8)}
"""Whether an operation has a weight and a bias, and the bytes of its partial result and of its statistics."""

SOURCE = r"""
#include <cstring>
#include "plan_rows.h"

using namespace kernels;

// Writes the plan's numbers to `out`. Returns the strategy's name, or the sentence that refuses.
extern "C" __attribute__((visibility("default"))) const char* plan(
    const long long* of, const char* strategy, int (*active)(int, int, int), long long* out) {
  static std::string said;
  try {
    const RowsProblem problem{of[0], of[1], of[2], static_cast<int>(of[3]), of[4] != 0, of[5] != 0};
    const RowsOperation op{of[6] != 0, of[7] != 0, static_cast<int>(of[8]), static_cast<int>(of[9])};
    const int shared_memory = static_cast<int>(of[11]);
    const DeviceLimits device{static_cast<int>(of[10]), shared_memory, shared_memory + 1024,
                              static_cast<int>(of[12]), of[12] > 1};
    const RowsOptions options{of[13], static_cast<int>(of[14]), strategy_named(strategy),
                              static_cast<int>(of[15]), static_cast<int>(of[16])};
    const LaunchPlan made = plan_rows(problem, op, device, options, [&](const auto& params) {
      return active(params.cluster_size, params.warps, params.stages);
    });
    const long long numbers[] = {made.grid, made.threads, made.cluster_size(), made.shared_bytes,
                                 made.stages(), made.vector_width, made.elements_per_thread, made.realign,
                                 made.partition.rows_per_block};
    std::memcpy(out, numbers, sizeof(numbers));
    said = name_of(made.strategy);
  } catch (const std::runtime_error& error) {
    said = std::string("!") + error.what();
  }
  return said.c_str();
}
"""

NAMES = (
    "grid",
    "block",
    "cluster",
    "shared_bytes",
    "stages",
    "vector_width",
    "elements",
    "realign",
    "rows_per_block",
)

Planner = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    """plan(kernel, problem, parameters, gpu): the plan's numbers. Raises ValueError with the sentence that
    refuses."""
    library = compiled.library(SOURCE, loading.ROOT / "include", tmp_path_factory.mktemp("plan"))
    library.plan.restype = ctypes.c_char_p
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)

    def planned(
        kernel: str,
        problem: Matrix,
        parameters: RowsPlan,
        gpu: Gpu = H200,
        active: Callable[[int, int, int], int] = lambda cluster, warps, stages: 120 // cluster,
        stride: int | None = None,
    ) -> dict[str, Any]:
        item = ITEM_BYTES[problem.dtype]
        even = problem.columns * item % 16 == 0
        stride = problem.columns if stride is None else stride
        alike = problem.rows == 1 or (stride - problem.columns) * item % 16 == 0
        numbers = (
            *(problem.rows, problem.columns, stride, item, alike, even and alike),
            *OPERATIONS[kernel],
            *(gpu.multiprocessors, gpu.shared_memory, 1 if gpu.capability < (9, 0) else 16),
            *(parameters.block_size, parameters.num_warps, parameters.cluster_size, parameters.stages),
        )
        out = (ctypes.c_longlong * len(NAMES))()
        given = (ctypes.c_longlong * len(numbers))(*map(int, numbers))
        said = library.plan(given, parameters.strategy.encode(), callback(active), out).decode()
        if said.startswith("!"):
            raise ValueError(said[1:])
        return {"strategy": said, **dict(zip(NAMES, out, strict=True))}

    return planned


def test_auto_launches_what_an_h200_was_measured_with(plan: Planner) -> None:
    assert {row["strategy"] for row in MEASURED} >= {*STRATEGIES} - {"auto", "multi_pass"}
    for row in MEASURED:
        problem = Matrix(rows=row["rows"], columns=row["columns"], dtype=row["dtype"])
        parameters = RowsPlan(block_size=row["block_size"], num_warps=row["num_warps"])

        def active(cluster: int, warps: int, stages: int, row: dict[str, Any] = row) -> int:
            del warps, stages
            # Nothing is known of sizes that this row did not get, except that they were not better.
            return row["grid"] // cluster if cluster == row["cluster"] else 0

        made = plan(row["kernel"], problem, parameters, active=active)
        copies = ["copy"] * made["realign"]
        launches = 2 if made["strategy"] == "split_multi_pass" else 1
        assert row["launches"] == [*copies, *[made["strategy"]] * launches]
        for name in ("strategy", "grid", "block", "cluster", "shared_bytes", "stages"):
            assert made[name] == row[name], row


SHAPES = [
    Matrix(rows=rows, columns=columns, dtype=dtype)
    for rows, columns in itertools.product(
        (1, 37, 4096), (37, 256, 781, 4096, 12671, 65536, 100_003, 262_144, 1_000_000)
    )
    for dtype in ("float32", "bfloat16")
]


def plans() -> Iterator[RowsPlan]:
    """Every strategy with what it can be told."""
    for strategy, block_size, num_warps, cluster_size, stages in itertools.product(
        STRATEGIES, (256, 1024, 8192, 32768), (1, 4, 8, 16, 32), (0, 1, 3, 4, 16), (0, 3, 6)
    ):
        yield RowsPlan(
            block_size=block_size,
            num_warps=num_warps,
            strategy=strategy,
            cluster_size=cluster_size,
            stages=stages,
        )


@pytest.mark.parametrize("gpu", [H200, A100], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_plan_that_fits_is_launched_as_it_was_asked_for(plan: Planner, name: str, gpu: Gpu) -> None:
    """``fits`` knows in Python what the operator would refuse."""
    fits = loading.load(name).kernel.provider("cuda").fits
    fitting = set()
    for problem, asked in itertools.product(SHAPES, plans()):
        if fits(problem, asked, gpu) is not None:
            continue
        made = plan(name, problem, asked, gpu)
        fitting.add(asked.strategy)
        assert asked.strategy in {"auto", made["strategy"]}
        assert asked.cluster_size in {0, made["cluster"]}
        assert asked.stages in {0, made["stages"]}
        assert made["block"] == 32 * asked.num_warps
        assert made["shared_bytes"] <= gpu.shared_memory
        assert made["grid"] % made["cluster"] == 0
        if asked.strategy == "register_resident":
            rows = made["rows_per_block"] if made["cluster"] == 1 else 1
            assert made["elements"] * made["block"] * made["cluster"] >= problem.columns * rows
        if asked.strategy == "persistent":
            assert made["grid"] // made["cluster"] <= problem.rows, (
                "a cluster without a row would wait forever"
            )
    assert fitting == {*STRATEGIES} - ({"persistent"} if gpu is A100 else set())


MANY = Matrix(rows=4096, columns=65536, dtype="float32")


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "asked", "sentence"),
    yaml.safe_load(Path(__file__).with_name("refused_plans.yaml").read_text()),
)
def test_what_a_strategy_cannot_do_is_a_sentence(
    plan: Planner, rows: int, columns: int, dtype: str, asked: dict[str, Any], sentence: str
) -> None:
    problem = Matrix(rows=rows, columns=columns, dtype=dtype)
    parameters = RowsPlan(**{"block_size": 1024, "num_warps": 4, **asked})
    fits = loading.load("layernorm").kernel.provider("cuda").fits
    assert fits(problem, parameters, H200) is not None
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        plan("layernorm", problem, parameters)


def test_rows_that_begin_unlike_their_outputs_take_an_element_at_a_time(plan: Planner) -> None:
    problem = Matrix(rows=100, columns=4096, dtype="float32")
    asked = {name: RowsPlan(block_size=4096, num_warps=8, strategy=name) for name in STRATEGIES}
    assert plan("softmax", problem, asked["auto"], stride=4097)["vector_width"] == 1
    for name in ("shared_memory_resident", "persistent"):
        with pytest.raises(
            ValueError, match=f"^strategy {name} needs an input and an output whose rows begin alike"
        ):
            plan("softmax", problem, asked[name], stride=4097)


def test_stages_that_were_asked_for_may_take_all_of_shared_memory(plan: Planner) -> None:
    asked = RowsPlan(block_size=8192, num_warps=8, strategy="persistent")
    own = plan("rmsnorm", MANY, asked)
    assert (own["cluster"], own["stages"]) == (8, 3), "two blocks per multiprocessor"
    more = RowsPlan(block_size=8192, num_warps=8, strategy="persistent", cluster_size=8, stages=6)
    assert plan("rmsnorm", MANY, more)["stages"] == 6
