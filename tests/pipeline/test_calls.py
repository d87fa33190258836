"""Kernels whose dimensions are lists and whose entries take more than a row of tensors, measured as their
authors measure them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernel_pipeline.contract import Kernel, Provider
from kernel_pipeline.declared import ContractError, variables
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point, order
from pipeline.points import catalog, notation, plan
from tests.planted import grouped
from tests.planted.tree import PLANTED, Tree, cpu_tree

KERNELS = ("grouped", "selected", "handed")

Swept = tuple[Tree, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Return a checkout with the kernels, and a sweep of them."""
    tree = cpu_tree(tmp_path_factory.mktemp("calls"), *KERNELS)
    return tree, tree.sweep(f"kernel=[{','.join(KERNELS)}]", "size=64")


@pytest.mark.slow
def test_right_providers_are_timed_and_wrong_ones_refused_with_a_sentence(swept: Swept) -> None:
    tree, done = swept
    assert done.returncode == 0, done.stderr
    rows = [row for kernel in KERNELS for row in tree.rows(kernel)]
    # Without a bias a provider that never adds it is right.
    found = {
        (row.point.kernel, row.point.provider): row.outcome
        for row in rows
        if row.point.problem.get("biased", True)
    }
    right = {
        ("grouped", "torch"),
        ("grouped", "compiled"),
        ("selected", "torch"),
        ("selected", "by_nonzero"),
        ("handed", "torch"),
    }
    assert {name for name, outcome in found.items() if outcome.status == "ok"} == right
    assert found["handed", "triton"].status == "verified"
    refused = {name: str(outcome.error) for name, outcome in found.items() if outcome.status == "incorrect"}
    for name, sentence in {
        ("grouped", "first_weight_for_all"): "elements are wrong, the first at (0, 0)",
        ("grouped", "never_biased"): "elements are wrong, the first at (0, 0)",
        ("grouped", "a_group_short"): "returned 3 outputs, not 4",
        ("selected", "last_left_out"): "output 0: its size is ",
        ("selected", "of_the_bound"): "output 0: its size is 64, not ",
        ("selected", "beyond_the_bound"): "output 0: shape is ",
        ("selected", "places_from_one"): "output 1: ",
        ("selected", "the_input"): "output 0: lies in the memory of an input",
        ("handed", "last_row_unwritten"): "64 of 320 elements are wrong",
        ("handed", "returned"): "320 of 320 elements are wrong",
        ("handed", "workspace_taken_as_zeros"): "output 1: 5 of 5 elements are wrong",
    }.items():
        assert sentence in refused.pop(name), name
    assert not refused


@pytest.mark.slow
def test_a_list_on_the_command_line_is_one_problem_and_a_list_of_lists_several(swept: Swept) -> None:
    tree, _ = swept
    words = ("kernel=grouped", "provider=torch", "n=4", "biased=true", "debug=true")
    one, several, wrong, unknown = tree.in_turn(
        "sweep", [*words, "m=[2,3]"], [*words, "m=[[2,3],[7]]"], [*words, "m=abc"], [*words, "m=[1,0]"]
    )
    assert "m=[2,3] n=4" in one.stdout and one.stdout.count(" right") == 1, one.stdout
    assert "m=[2,3] n=4" in several.stdout and "m=[7] n=4" in several.stdout, several.stdout
    must = "m: must be a list of whole numbers from 1 on, as [64,128]"
    assert (wrong.returncode, wrong.stderr) == (2, f"error: {must}, not 'abc'.\n")
    assert (unknown.returncode, unknown.stderr) == (2, f"error: {must}, not [1,0].\n")


def test_a_list_in_yaml_is_one_value_and_in_a_point_a_list_in_json(tmp_path: Path) -> None:
    for text, wanted in (("[3, 1]", [(3, 1)]), ("[[3, 1], [4]]", [(3, 1), (4,)]), ("5", [(5,)])):
        folder = tmp_path / "grouped"
        folder.mkdir(exist_ok=True)
        for file in (PLANTED / "grouped").glob("*.py"):
            (folder / file.name).write_text(file.read_text())
        (folder / "kernel.yaml").write_text(
            f"workloads: {{all: {{x: n, n: 4, m: {text}}}}}\npresets: {{smoke: {{workloads: all}}}}\n"
        )
        entry = catalog.find(str(folder))
        planned = plan.plan(entry, "smoke", plan.Target("cpu"), providers=["torch"])
        assert [point.problem["m"] for point in planned.points] == wanted
    point = planned.points[0]
    assert Point.from_json(point.to_json()) == point and b'"m":[5]' in point.to_json()
    assert hash(Point.from_json(point.to_json())) == hash(point)
    assert notation.extent(point) == "m=[5] n=4"
    assert notation.Variant.read("torch/m=[2,3],n=8", entry).pins == {"m": ((2, 3),), "n": (8,)}


def test_points_with_lists_are_sorted_by_their_numbers() -> None:
    points = [
        Point(kernel="grouped", provider="torch", problem=Values({"m": m, "n": 4}))
        for m in ((128, 1), (64, 300), (64,), 7)
    ]
    assert [point.problem["m"] for point in sorted(points, key=order)] == [7, (64,), (64, 300), (128, 1)]


@dataclass(frozen=True)
class Blocks:
    block: tuple[int, ...] = (16, 16)


def test_a_list_is_no_size_and_no_parameter() -> None:
    assert variables(grouped.Groups)["m"].type is tuple
    kernel = grouped.kernel
    with pytest.raises(ContractError, match="m is a list: size names dimensions of one number"):
        Kernel(grouped.Groups, ("m",), kernel.work, kernel.tolerance, kernel.providers)
    provider = Provider("torch", "torch.py:products", Blocks)
    with pytest.raises(ContractError, match="block of torch is a list: declare its numbers"):
        Kernel(grouped.Groups, ("n",), kernel.work, kernel.tolerance, (provider,))
    for wrong in ((True,), (2**70,), ()):
        with pytest.raises(ValueError, match="m must be a flag, a number, a short list of numbers"):
            Values.checked({"m": list(wrong)})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"destination": "middle"}, "destination must be first or last, not 'middle'"),
        ({"destination": "last", "in_place": True}, "in_place outputs are inputs"),
        ({"destination": "last", "bounded": (0,)}, "bounded outputs are returned"),
    ],
)
def test_ways_of_calling_that_exclude_each_other_are_refused(
    changes: dict[str, object], sentence: str
) -> None:
    kernel = grouped.kernel
    fixed = (grouped.Groups, ("n",), kernel.work, kernel.tolerance, kernel.providers)
    with pytest.raises(ContractError, match=sentence):
        Kernel(*fixed, **changes)  # type: ignore[arg-type]
