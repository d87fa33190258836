"""Which points are looked into: problems by their size, configurations by the ledger."""

from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline.declared import Value
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from pipeline.points import catalog, choice
from pipeline.points.plan import Target, plan
from tests import factory
from tests.planted import outside

SOFTMAX = catalog.find("softmax")
KERNEL = SOFTMAX.loaded.kernel
MATMUL = catalog.find("matmul")


def few(entry: catalog.Entry, preset: str, *names: str, **pins: tuple[Value, ...]) -> list[tuple[Value, ...]]:
    """The chosen problems, by the values of these dimensions."""
    return [tuple(one[name] for name in names) for one in choice.few_problems(entry, preset, pins)]


def test_problems_are_few_of_the_first_workload_in_its_first_words(tmp_path: Path) -> None:
    found = few(SOFTMAX, "standard", "rows", "columns", "dtype")
    assert found == [(4096, columns, "float32") for columns in (256, 8192, 262144)]
    assert few(MATMUL, "standard", "m", "n", "k", "dtype", "arithmetic") == [
        (size, size, size, "bfloat16", "ieee") for size in (512, 2048, 8192)
    ]
    double = catalog.find(str(outside.write(tmp_path)))
    assert few(double, "smoke", "n") == [(8,), (64,), (4096,)], "by size, in whatever order they are written"
    assert choice.few_problems(double, "smoke", {}, which=slice(1)) == [Values({"n": 8, "dtype": "float32"})]


def test_a_pinned_dimension_has_all_its_values_and_the_others_stay_few() -> None:
    sizes = (256, 512, 1024, 2048)
    assert few(SOFTMAX, "standard", "columns", size=sizes) == [(size,) for size in sizes]
    assert few(SOFTMAX, "standard", "columns", "dtype", size=(512,), dtype=("float16",)) == [(512, "float16")]
    both = few(SOFTMAX, "standard", "dtype", "columns", dtype=("bfloat16", "float32"))
    columns = (256, 8192, 262144)
    assert both == [(dtype, one) for dtype in ("bfloat16", "float32") for one in columns]
    assert few(SOFTMAX, "standard", "rows", "columns", rows=(1, 37)) == [
        (rows, one) for rows in (1, 37) for one in columns
    ]
    assert few(MATMUL, "standard", "m", "n", "k", m=(16,), size=(8192,)) == [(16, 8192, 8192)]
    with pytest.raises(UserError, match="Did you mean 'columns'"):
        few(SOFTMAX, "standard", "columns", column=(3,))


def test_the_largest_problem_of_each_workload_is_in_its_first_words() -> None:
    def largest(entry: catalog.Entry, preset: str, *names: str, **pins: tuple[Value, ...]) -> set[Any]:
        found = choice.largest(plan(entry, preset, Target("cuda"), pins), pins)
        return {tuple(one[name] for name in names) for one in found}

    assert largest(SOFTMAX, "quick", "rows", "columns", "dtype") == {(4096, 16384, "float32")}
    assert largest(MATMUL, "quick", "m", "dtype") == {(4096, "bfloat16")}
    assert {(64, "bfloat16"), (2049, "bfloat16")} < largest(MATMUL, "standard", "m", "dtype")
    both = largest(SOFTMAX, "quick", "columns", "dtype", dtype=("float32", "bfloat16"))
    assert both == {(16384, "float32"), (16384, "bfloat16")}
    sizes = (256, 1024)
    assert largest(SOFTMAX, "quick", "columns", size=sizes) == {(256,), (1024,)}


def test_what_other_workloads_add_at_the_same_problems_is_looked_into() -> None:
    """The first group launches no fewer than 2 warps, the workload of short rows also 1."""
    planned = plan(SOFTMAX, "standard", Target("cuda"), {}, ["triton_row", "cpp", "torch"])
    problems = choice.few_problems(SOFTMAX, "standard", {})
    points = choice.at(planned, problems, lambda name: name != "torch")
    of_short = [point for point in points if point.problem["columns"] == 256]
    assert {point.parameters["num_warps"] for point in of_short} == {1, 2, 4, 8, 16, 32}
    assert {point.provider for point in points} == {"triton_row"}
    assert {point.problem["rows"] for point in points} == {4096}


def timed(*rows: tuple[str, float, dict[str, Value]]) -> dict[Any, Any]:
    made = [factory.measurement("softmax", name, 1024, median_us=us, **named) for name, us, named in rows]
    return {row.point: row for row in made}


def test_points_are_chosen_by_the_ledger() -> None:
    rows = timed(
        ("torch", 10.0, {}),
        ("triton_online", 9.0, {"block_size": 1024, "num_warps": 4}),
        ("triton_online", 6.0, {"block_size": 2048, "num_warps": 8}),
        ("cuda", 7.0, {"block_size": 512, "num_warps": 8}),
    )
    chosen = choice.best_default_baseline(KERNEL, list(rows), rows)
    assert {one.role: (one.point.provider, dict(one.point.parameters)) for one in chosen} == {
        "best": ("triton_online", {"block_size": 2048, "num_warps": 8}),
        "default": ("triton_online", {"block_size": 1024, "num_warps": 4}),
        "baseline": ("torch", {}),
    }
    each = {
        one.point.provider: one.point.parameters for one in choice.each_provider(KERNEL, list(rows), rows)
    }
    assert {name: parameters.get("block_size") for name, parameters in each.items()} == {
        "torch": None,
        "triton_online": 2048,
        "cuda": 512,
    }
    without = choice.each_provider(KERNEL, list(rows), {})
    assert {one.point.provider: one.point.parameters.get("block_size") for one in without} == {
        "torch": None,
        "triton_online": 1024,
        "cuda": 512,
    }
    unknown = choice.best_default_baseline(KERNEL, list(rows), {})
    assert [(one.role, one.point.provider) for one in unknown] == [
        ("default", "triton_online"),
        ("baseline", "torch"),
    ]


def test_a_time_not_to_be_trusted_is_the_best_only_where_there_is_no_other() -> None:
    made = [
        factory.measurement("softmax", "cuda", median_us=us, valid=valid, block_size=block)
        for us, valid, block in ((1.0, False, 256), (2.0, True, 512), (3.0, True, 1024))
    ]
    rows = {row.point: row for row in made}
    (best,) = choice.each_provider(KERNEL, list(rows), rows)
    assert best.point.parameters["block_size"] == 512
    (best,) = choice.each_provider(KERNEL, list(rows)[:1], rows)
    assert best.point.parameters["block_size"] == 256


def test_the_default_is_the_declared_one_or_the_nearest_by_its_place() -> None:
    def nearest(*parameters: dict[str, Value]) -> dict[str, Value]:
        points = [factory.made_point("matmul", "triton_tiled", 4096, "bfloat16", **one) for one in parameters]
        return dict(choice.near_default(MATMUL.loaded.kernel, points).parameters)

    declared = MATMUL.loaded.kernel.provider("triton_tiled").variables()
    defaults = {name: variable.default for name, variable in declared.items()}
    assert nearest({"num_warps": 4}, {}, {"block_m": 64}) == defaults
    # One place off each: 64 of 128 is one, 16 is three.
    assert nearest({"block_m": 16}, {"block_m": 64, "num_warps": 4}) == defaults | {
        "block_m": 64,
        "num_warps": 4,
    }
