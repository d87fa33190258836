"""What the compiler made of two sides, by real trees and the real compiler."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline import ROOT
from pipeline.verdicts import code
from pipeline.verdicts.rounds import Candidate, Match, Side
from tests.planted.tree import Tree

POINT = Point(
    kernel="square",
    provider="triton_flat",
    problem=Values({"rows": 64, "columns": 64, "dtype": "float32"}),
    parameters=Values({"block_size": 1024, "num_warps": 4}),
)


def of_side(root: Path, where: str, point: Point) -> dict[str, code.Numbers]:
    with code.Compiling(root, where, point, "90") as compiling:
        return compiling.numbers()


@pytest.mark.slow
def test_an_edit_of_a_triton_function_is_seen_in_its_numbers(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    source = tree.root / "kernels/square/triton.py"
    text = source.read_text()
    edited = text.replace("(values * values)", "(values * values * (values + 1.0) * (values + 3.0))")
    assert edited != text
    source.write_text(edited)
    before = of_side(ROOT, "square", POINT)
    after = of_side(tree.root, "square", POINT)
    assert before.keys() == after.keys() and len(before) == 1
    (line,) = code.differences(before, after)
    (name,) = before
    assert line.startswith(f"{name}: ")
    assert f"instructions {before[name]['instructions']} -> {after[name]['instructions']}" in line
    assert code.differences(before, before) == []

    with pytest.raises(UserError, match="unknown provider of square"):
        of_side(ROOT, "square", POINT.replace(provider="nope"))


def looked_into(a: tuple[str, str, int], b: tuple[str, str, int], verdict: str = "slower") -> bool:
    """Whether a comparison of two looks into their code; each is a tree's name, a provider of square and
    its warps."""
    candidates = tuple(
        Candidate(
            Side(side, Path(side), "square"),
            POINT.replace(provider=name, parameters=Values({"num_warps": warps})),
            f"{side}{name}{warps}",
        )
        for side, name, warps in (a, b)
    )
    match = Match(candidates)
    told = SimpleNamespace(
        matches=[match],
        verdicts=lambda: {(match, candidates[1]): verdict},
        estimates=lambda: {(match, candidates[1]): SimpleNamespace(ratio=1.1)},
    )
    return bool(code.most_changed(cast(Any, told), loading.load("square").kernel))


def test_code_is_looked_into_where_the_two_have_code_of_their_own() -> None:
    triton, cuda, torch = ("tree", "triton_flat", 4), ("tree", "cuda", 4), ("tree", "torch_mul", 4)
    for one in (triton, cuda):
        assert looked_into(one, ("HEAD", *one[1:]))
        assert not looked_into(one, ("HEAD", *one[1:]), "same")
    assert not looked_into(torch, ("HEAD", *torch[1:])), "nothing of ours was compiled"
    assert looked_into(triton, ("tree", "triton_flat", 8)), "each configuration is compiled by itself"
    assert not looked_into(cuda, ("tree", "cuda", 8)), "they are of one library"
    assert not looked_into(triton, cuda), "no function of the one is a function of the other"


def test_those_that_differ_most_come_first_and_the_rest_is_counted() -> None:
    a = {f"f{i}": {"registers": 32, "shared": 0, "instructions": 100} for i in range(12)}
    b = {name: numbers | {"instructions": 100 + i} for i, (name, numbers) in enumerate(a.items())}
    lines = code.differences(a, b)
    assert lines[0] == "f11: instructions 100 -> 111"
    assert len(lines) == 9 and lines[-1] == "3 more functions differ."
    more = {"f": {"registers": 40, "shared": 0, "instructions": 90}}
    less = {"f": {"registers": 38, "shared": 1024, "instructions": 90}}
    assert code.differences(more, less) == ["f: registers 40 -> 38, shared 0 -> 1024"]


def test_a_function_that_one_side_alone_has_is_no_equal_code() -> None:
    before = {"f<4>": {"registers": 32, "shared": 0, "instructions": 100}}
    after = {"f<4,2>": {"registers": 40, "shared": 0, "instructions": 300}}
    assert code.differences(before, after) == [
        "f<4,2>: only b has it, registers 40, shared 0, instructions 300",
        "f<4>: only a has it, registers 32, shared 0, instructions 100",
    ]
