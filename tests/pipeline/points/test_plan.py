"""Which points a preset and pins make, of a kernel that is declared here."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline import contract, loading
from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance, Work, one_of, same_as
from kernel_pipeline.declared import Value
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline.points import catalog
from pipeline.points.catalog import Entry, KernelConfig
from pipeline.points.plan import Plan, Target, plan, with_baseline

H200 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=50 << 20)
GPU = Target("cuda", H200)
CPU = Target("cpu")


@dataclass(frozen=True, kw_only=True)
class Problem:
    rows: int = 4096
    columns: int
    heads: int = 8
    groups: int = same_as("heads")
    dtype: str = one_of("float32", "bfloat16")
    causal: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    num_warps: int = one_of(2, 4, 8, default=4)


@dataclass(frozen=True, kw_only=True)
class Tile:
    block: int = one_of(64, 128, 256, default=128)
    num_warps: int = one_of(4, 8, 16)
    reverse: bool = False
    steps: int = 3


def narrow(problem: Problem, parameters: Row, gpu: Gpu | None) -> str | None:
    return f"a row is held: {problem.columns} columns > 1000" if problem.columns > 1000 else None


def no_crowd(problem: Problem, parameters: Tile, gpu: Gpu | None) -> str | None:
    if gpu is not None and parameters.block * 1000 > gpu.shared_memory:
        return "too much shared memory"
    return None


KERNEL = Kernel(
    problem=Problem,
    size=("columns",),
    work=lambda problem: Work(1, {}),
    tolerance=lambda problem: Tolerance(rtol=0.0, atol=0.0),
    providers=(
        Provider("torch", "torch.py:f"),
        Provider("row", "triton.py:row", Row, narrow),
        Provider("tile", "triton.py:tile", Tile, no_crowd),
        Provider("cuda", "cuda.cu:f", Tile),
        Provider("wgmma", "cuda.cu:g", needs="sm_100a"),
        Provider("cpp", "cpp.cpp:f"),
        Provider("peer", "peers.py:f", language="torch", devices=("cuda",), package="no-such-package"),
    ),
)
SQUARE = Kernel(
    problem=Problem,
    size=("rows", "columns"),
    work=KERNEL.work,
    tolerance=KERNEL.tolerance,
    providers=KERNEL.providers[:1],
)


def entry(presets: Any, kernel: Kernel = KERNEL, **workloads: Any) -> Entry:
    config = KernelConfig.model_validate({"workloads": workloads, "presets": {"smoke": presets}})
    loaded = loading.Loaded("planted", "planted", Path("/planted"), "planted", kernel, "")
    return Entry(loaded, config, Path("/planted.yaml"))


def made(presets: Any, target: Target = GPU, kernel: Kernel = KERNEL, **rest: Any) -> Plan:
    """The plan; of the named arguments lists are workloads, ``pins`` and ``providers`` the command line's."""
    pins, providers = rest.pop("pins", None), rest.pop("providers", None)
    return plan(entry(presets, kernel, **rest), "smoke", target, pins, providers)


def problems_of(found: Plan) -> list[dict[str, Value]]:
    """What differs from the defaults, a problem each in its order."""
    plain = {"rows": 4096, "heads": 8, "groups": 8, "dtype": "float32", "causal": False}
    every = dict.fromkeys(point.problem for point in found.points)
    return [{n: v for n, v in problem.items() if plain.get(n) != v} for problem in every]


def parameters_of(found: Plan, provider: str) -> list[dict[str, Value]]:
    return [dict(point.parameters) for point in found.points if point.provider == provider]


ONE = {"x": "size", "size": 64}


# Workloads: a product of lists; size expands first, named dimensions override it.
@pytest.mark.parametrize(
    ("workload", "kernel", "expected"),
    [
        ({"x": "size", "size": [64, 128]}, KERNEL, [{"columns": 64}, {"columns": 128}]),
        (
            {"x": "rows", "size": 64, "rows": [1, 2], "dtype": ["float32", "bfloat16"]},
            KERNEL,
            [
                {"columns": 64, "rows": rows, **dtype}
                for rows in (1, 2)
                for dtype in ({}, {"dtype": "bfloat16"})
            ],
        ),
        ({"x": "columns", "columns": [3, 3, 5]}, KERNEL, [{"columns": 3}, {"columns": 5}]),
        ({"x": "columns", "size": [64, 128], "columns": [3]}, KERNEL, [{"columns": 3}]),
        (
            {"x": "size", "size": [64, 128]},
            SQUARE,
            [{"rows": 64, "columns": 64}, {"rows": 128, "columns": 128}],
        ),
        ({"x": "rows", "size": 64, "rows": [1]}, SQUARE, [{"rows": 1, "columns": 64}]),
        (
            {"x": "size", "size": 64, "heads": [8, 16]},
            KERNEL,
            [{"columns": 64}, {"columns": 64, "heads": 16, "groups": 16}],
        ),
        (
            {"x": "size", "size": 64, "heads": 16, "groups": [1, 16]},
            KERNEL,
            [{"columns": 64, "heads": 16, "groups": groups} for groups in (1, 16)],
        ),
        ({"x": "size", "size": 64, "causal": True}, KERNEL, [{"columns": 64, "causal": True}]),
        (
            {"x": "rows", "problems": [{"rows": 1, "columns": 3}, {"rows": 2, "columns": 5}]},
            KERNEL,
            [{"rows": 1, "columns": 3}, {"rows": 2, "columns": 5}],
        ),
        (
            {"x": "rows", "problems": [{"rows": 1, "columns": 3}], "dtype": ["float32", "bfloat16"]},
            KERNEL,
            [{"rows": 1, "columns": 3}, {"rows": 1, "columns": 3, "dtype": "bfloat16"}],
        ),
        (
            {"x": "rows", "size": 64, "problems": [{"rows": 1}, {"columns": 7}]},
            KERNEL,
            [{"rows": 1, "columns": 64}, {"columns": 7}],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_workload_is_the_product_of_its_lists(
    workload: dict[str, Any], kernel: Kernel, expected: list[dict[str, Value]]
) -> None:
    found = made({"workloads": "one"}, kernel=kernel, providers=["torch"], one=workload)
    assert problems_of(found) == expected


# Groups: each provider's configurations, "*" for those that are not named.
@pytest.mark.parametrize(
    ("told", "blocks", "warps"),
    [
        ({}, [128], [4]),
        ({"tile": None, "*": "all"}, [128], [4]),
        ({"tile": "all"}, [64, 128, 256], [4, 8, 16]),
        ({"*": "all"}, [64, 128, 256], [4, 8, 16]),
        ({"tile": {"block": [64, 256]}}, [64, 256], [4]),
        ({"tile": {"block": 64, "num_warps": [8]}}, [64], [8]),
        ({"*": {"num_warps": [2, 4, 8, 32]}}, [128], [4, 8]),
        ({"*": {"num_warps": [8]}, "tile": {"block": [64]}}, [64], [4]),
        ({"*": {"num_warps": [2]}}, [], []),
    ],
    ids=str,
)
def test_a_group_names_configurations(told: dict[str, Any], blocks: list[int], warps: list[int]) -> None:
    found = parameters_of(made({"workloads": "one", **told}, Target("cuda"), one=ONE), "tile")
    both = [one for one in found if one["reverse"]]
    assert len(both) == (len(found) / 2 if told.get("tile", told.get("*")) == "all" else 0)
    found = [one for one in found if not one["reverse"]]
    assert [(one["block"], one["num_warps"]) for one in found] == [(b, w) for b in blocks for w in warps]
    assert {one["steps"] for one in found} <= {3}, "of any number, `all` is the default"


def test_a_group_names_several_lists_and_measures_what_they_share_once() -> None:
    lists = [
        {"block": [64, 128], "num_warps": [4]},
        {"block": [128, 256], "num_warps": [4]},
        {"num_warps": 16},
    ]
    found = parameters_of(made({"workloads": "one", "tile": lists}, Target("cuda"), one=ONE), "tile")
    assert [(one["block"], one["num_warps"]) for one in found] == [(64, 4), (128, 4), (256, 4), (128, 16)]
    pinned = made({"workloads": "one", "tile": lists}, Target("cuda"), pins={"block": [64]}, one=ONE)
    assert [one["num_warps"] for one in parameters_of(pinned, "tile")] == [4, 16]


def test_a_provider_that_a_group_leaves_out_is_measured_there_when_it_is_asked_for() -> None:
    presets = [{"workloads": "one", "without": "torch"}, {"workloads": "other"}]
    other = {"x": "size", "size": [128], "dtype": ["float32"]}

    def problems_of(providers: list[str] | None) -> list[int]:
        found = made(presets, providers=providers, one=ONE, other=other).points
        return [point.problem["columns"] for point in found if point.provider == "torch"]

    assert problems_of(None) == [128]
    assert problems_of(["torch"]) == [64, 128]


def test_groups_add_points_and_a_point_belongs_to_the_first_workload_that_has_it() -> None:
    presets = [
        {"workloads": ["few", "many"], "row": {"num_warps": [2]}},
        {"workloads": "few", "row": {"num_warps": [8]}},
    ]
    few, many = {"x": "size", "size": [64, 128]}, {"x": "rows", "rows": [4096, 1], "size": [64]}
    found = made(presets, providers=["row"], few=few, many=many)
    assert [(p.problem["columns"], p.problem["rows"], p.parameters["num_warps"]) for p in found.points] == [
        *((64, 4096, 2), (64, 4096, 8)),
        *((128, 4096, 2), (128, 4096, 8)),
        (64, 1, 2),
    ]
    assert [found.workloads[point] for point in found.points] == ["few"] * 4 + ["many"]


def test_a_search_chooses_among_all_that_a_provider_declares_and_pins_bind() -> None:
    presets = [{"workloads": "one", "tile": {"block": [64]}}, {"workloads": "one", "tile": {"block": [128]}}]
    planted = entry(presets, one=ONE)
    pins = {"num_warps": (8,)}
    found = plan(planted, "smoke", GPU, pins, ["tile", "row"], every=True)
    assert [(one["block"], one["reverse"]) for one in parameters_of(found, "tile")] == [
        (block, reverse) for block in (64, 128) for reverse in (False, True)
    ]
    assert {point.parameters["num_warps"] for point in found.points} == {8}
    assert found.refused == {("tile", "too much shared memory"): 2}, "of a problem in two groups once"
    beside = with_baseline(found, planted, "smoke", GPU, pins, every=True)
    assert {*beside.points} - {*found.points} == {
        Point(kernel="planted", provider="torch", problem=found.points[0].problem)
    }


def test_points_that_share_inputs_are_neighbours() -> None:
    presets = [{"workloads": "one", "*": "all"}, {"workloads": "two", "*": {"num_warps": [2, 4]}}]
    one, two = {"x": "size", "size": [64, 128, 256]}, {"x": "size", "size": [128, 512], "dtype": "float32"}
    points = made(presets, one=one, two=two).points
    changes = sum(a.problem != b.problem for a, b in pairwise(points))
    assert changes == len({point.problem for point in points}) - 1
    assert len(set(points)) == len(points), "a point that several groups hold is there once"


# Pins: in place of the YAML's values.
@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"size": (7,)}, [{"columns": 7}]),
        ({"columns": (7, 9)}, [{"columns": 7}, {"columns": 9}]),
        ({"columns": (7,), "size": (9,)}, [{"columns": 7}]),
        ({"rows": (3,)}, [{"columns": 64, "rows": 3}, {"columns": 128, "rows": 3}]),
        ({"dtype": ("bfloat16",)}, None),
        ({"causal": (1,)}, None),
        ({"heads": (2,)}, [{"columns": c, "heads": 2, "groups": 2} for c in (64, 128)]),
    ],
    ids=str,
)
def test_a_pinned_number_is_of_the_first_group_alone(
    pins: dict[str, Any], expected: list[dict[str, Value]] | None
) -> None:
    presets = [{"workloads": "one"}, {"workloads": "odd"}]
    one, odd = {"x": "size", "size": [64, 128]}, {"x": "rows", "problems": [{"rows": 1, "columns": 5}]}
    found = problems_of(made(presets, providers=["torch"], pins=pins, one=one, odd=odd))
    if expected is None:  # a word, which the other groups were not chosen for
        ((name, (value,)),) = pins.items()
        expected = [{"columns": 64, name: value}, {"columns": 128, name: value}]
        expected.append({"rows": 1, "columns": 5, name: value})
    assert found == expected


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"size": (7,)}, [{"rows": 1, "columns": 7}]),
        ({"columns": (7,)}, [{"rows": 1, "columns": 7}]),
        ({"rows": (2, 3)}, [{"rows": 2, "columns": 5}, {"rows": 3, "columns": 5}]),
    ],
    ids=str,
)
def test_a_problem_that_is_written_out_yields_to_a_pin(
    pins: dict[str, Any], expected: list[dict[str, Value]]
) -> None:
    odd = {"x": "rows", "problems": [{"rows": 1, "columns": 5}], "heads": [8]}
    assert problems_of(made({"workloads": "odd"}, providers=["torch"], pins=pins, odd=odd)) == expected


def test_a_pinned_size_is_all_of_its_dimensions_unless_one_is_pinned_too() -> None:
    wide = {"x": "rows", "size": 64, "rows": [1, 2]}
    for pins, expected in (
        ({"size": (7,)}, [{"rows": 7, "columns": 7}]),
        ({"size": (7,), "rows": (3,)}, [{"rows": 3, "columns": 7}]),
        ({"columns": (7,)}, [{"rows": 1, "columns": 7}, {"rows": 2, "columns": 7}]),
    ):
        assert problems_of(made({"workloads": "wide"}, kernel=SQUARE, pins=pins, wide=wide)) == expected
    listed = made(
        {"workloads": "w"}, providers=["torch"], pins={"size": (7,)}, w={"x": "columns", "columns": [3]}
    )
    assert problems_of(listed) == [{"columns": 7}], "in place of the dimension's own list, too"


def test_a_problem_that_pins_took_off_its_axis_belongs_to_the_workload_that_lists_it() -> None:
    listed = {
        "small": {"x": "size", "size": 8},
        "square": {"x": "size", "size": [8, 64]},
        "wide": {"x": "rows", "size": 64, "rows": [1, 2]},
        "odd": {"x": "rows", "problems": [{"rows": 1, "columns": 64}]},
    }
    both = ["square", "wide"]
    for workloads, pins, expected in (
        (both, {"size": (64,), "rows": (1, 3)}, ["wide", "square"]),
        (both, {"size": (64,), "rows": (64,)}, ["square"]),
        (both, {"size": (7,)}, ["square"]),
        (both, {"size": (8,)}, ["square"]),  # on the axis, although another workload lists it as well
        (["odd"], {"dtype": ("float32",)}, ["odd"]),  # written out, so it is on no axis
    ):
        found = made({"workloads": workloads}, kernel=SQUARE, pins=pins, **listed)
        assert list(found.workloads.values()) == expected, pins


def test_a_problem_that_a_workload_has_twice_is_there_once() -> None:
    twice = {"x": "rows", "size": [64, 64], "problems": [{"rows": 1}, {"rows": 1}], "rows": [2, 3]}
    of = entry({"workloads": "twice"}, twice=twice)
    found = list(catalog.problems_of(of, of.config.workloads["twice"], {}))
    assert found == [Problem(rows=1, columns=64, groups=8)]


def test_a_pinned_parameter_binds_those_who_declare_it_and_can_take_it() -> None:
    found = made({"workloads": "one", "*": "all"}, Target("cuda"), one=ONE, pins={"num_warps": (2, 16)})
    assert {one["num_warps"] for one in parameters_of(found, "row")} == {2}
    assert {one["num_warps"] for one in parameters_of(found, "tile")} == {16}
    assert len(parameters_of(found, "torch")) == 1, "who does not declare it is measured as ever"
    found = made({"workloads": "one"}, one=ONE, pins={"block": (64,)}, providers=["tile", "torch"])
    assert [one["block"] for one in parameters_of(found, "tile")] == [64]
    found = made({"workloads": "one"}, one=ONE, pins={"reverse": (True, 0)}, providers=["tile"])
    assert [one["reverse"] for one in parameters_of(found, "tile")] == [True, False]
    found = made({"workloads": "one"}, one=ONE, pins={"steps": (1000,)}, providers=["tile"])
    assert [one["steps"] for one in parameters_of(found, "tile")] == [1000]


@pytest.mark.parametrize(
    ("pins", "providers", "said"),
    [
        ({"num_warps": (2,)}, ["tile"], r"^num_warps: must be one of 4, 8, 16, not 2\."),
        ({"num_warps": (4, 3)}, None, r"^num_warps: must be one of 2, 4, 8, not 3\."),
        ({"columns": (0,), "rows": (0,)}, None, r"^columns: .* rows: "),
        ({"steps": (2**63,)}, ["tile"], r"^steps: must be less than 2\*\*63, not 9223372036854775808\."),
    ],
    ids=str,
)
def test_a_pin_that_can_not_be_is_said(pins: dict[str, Any], providers: list[str] | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        made({"workloads": "one"}, one=ONE, pins=pins, providers=providers)


# What is no point is counted by its reason.
def test_what_does_not_fit_and_what_is_not_for_this_device_is_counted() -> None:
    wide = {"x": "size", "size": [64, 2000, 3000]}
    found = made({"workloads": "wide", "*": "all"}, wide=wide)
    assert found.refused == Counter(
        {
            ("row", "a row is held: 2000 columns > 1000"): 3,
            ("row", "a row is held: 3000 columns > 1000"): 3,
            ("tile", "too much shared memory"): 3 * 6,
            ("wgmma", "needs sm_100a, this GPU is sm_90"): 3,
            ("cpp", "runs on a CPU only"): 3,
            ("peer", "needs no-such-package: pip install 'no-such-package' -c constraints.txt"): 3,
        }
    )
    assert (
        "row: 6 configurations left out: for example a row is held: 2000 columns > 1000" in found.refusals()
    )
    assert "tile: 18 configurations left out: too much shared memory" in found.refusals()
    assert not {point.provider for point in found.points} & {"wgmma", "cpp", "peer"}


SIMULATED = dataclasses.replace(
    KERNEL,
    work=lambda problem: Work(1, {"float32": 1000 * problem.columns}),
    providers=(KERNEL.providers[0], Provider("numba", "numba.py:f")),
)


def test_a_numba_provider_needs_its_package_and_on_a_cpu_a_small_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = {"x": "size", "size": [64, 2000]}
    monkeypatch.setitem(contract.LANGUAGE_PACKAGES, "numba", "pytest[dev]")
    assert len(made({"workloads": "two"}, kernel=SIMULATED, two=two, providers=["numba"]).points) == 2
    on_a_cpu = made({"workloads": "two"}, Target("cpu"), SIMULATED, two=two, providers=["numba"])
    assert [dict(point.problem)["columns"] for point in on_a_cpu.points] == [64]
    sentence = "too long for Numba's simulator: 2000000 operations > 200000"
    assert on_a_cpu.refused == Counter({("numba", sentence): 1})
    monkeypatch.setitem(contract.LANGUAGE_PACKAGES, "numba", "no-such-package[cu13]")
    for target in (GPU, Target("cpu")):
        refused = made({"workloads": "two"}, target, SIMULATED, two=two, providers=["numba"]).refused
        sentence = "needs no-such-package[cu13]: pip install 'no-such-package[cu13]' -c constraints.txt"
        assert refused == Counter({("numba", sentence): 2})


def test_on_a_cpu_triton_is_verified_and_what_needs_a_gpu_is_none() -> None:
    found = made({"workloads": "one"}, CPU, one=ONE)
    assert [point.provider for point in found.points] == ["torch", "row", "tile", "cpp"]
    assert {reason for _, reason in found.refused} == {"needs a GPU"}
    assert {provider for provider, _ in found.refused} == {"cuda", "wgmma", "peer"}


def test_a_points_values_are_all_named_in_their_order() -> None:
    (point,) = made({"workloads": "one"}, one=ONE, providers=["tile"]).points
    assert point == Point(
        kernel="planted",
        provider="tile",
        problem=Values(
            {"rows": 4096, "columns": 64, "heads": 8, "groups": 8, "dtype": "float32", "causal": False}
        ),
        parameters=Values({"block": 128, "num_warps": 4, "reverse": False, "steps": 3}),
    )
    assert str(point) == (
        "planted/tile rows=4096 columns=64 heads=8 groups=8 dtype=float32 causal=false "
        "block=128 num_warps=4 reverse=false steps=3"
    )
    assert list(point.problem) == list(KERNEL.dimensions())


def test_the_baseline_comes_along_at_the_problems_of_a_choice_that_leaves_it_out() -> None:
    entry = catalog.find("square")
    pins: dict[str, tuple[Value, ...]] = {"size": (37, 64), "block_size": (256,)}

    def chosen(*providers: str) -> tuple[Plan, Plan]:
        alone = plan(entry, "smoke", CPU, pins, providers)
        return alone, with_baseline(alone, entry, "smoke", CPU, pins)

    alone, found = chosen("triton_flat")
    baseline = entry.loaded.kernel.baseline
    assert [point.provider for point in found.points] == [baseline, "triton_flat"] * 2
    assert [point for point in found.points if point.provider != baseline] == list(alone.points)
    assert {point.problem for point in found.points} == {point.problem for point in alone.points}
    assert set(found.workloads.values()) == set(alone.workloads.values())
    alone, found = chosen("triton_flat", baseline)
    assert found == alone
    pins.pop("block_size")
    alone, found = chosen("torch_compile")
    assert {point.provider for point in found.points} == {baseline, "torch_compile"}
    assert len(found.points) == 2 * len(alone.points)
    alone, found = chosen("torch_mul")
    assert found == alone, "nobody compares torch with itself"
