"""What the compiler made of two sides, by real trees and the real compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import ROOT, UserError
from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.verdicts import code
from tests.planted.tree import Tree

POINT = Point(
    kernel="square",
    provider="triton_flat",
    problem=Values({"rows": 64, "columns": 64, "dtype": "float32"}),
    parameters=Values({"block_size": 1024, "num_warps": 4}),
)


@pytest.mark.slow
def test_an_edit_of_a_triton_function_is_seen_in_its_numbers(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    source = tree.root / "kernels/square/triton.py"
    text = source.read_text()
    edited = text.replace("(values * values)", "(values * values * (values + 1.0) * (values + 3.0))")
    assert edited != text
    source.write_text(edited)
    before = code.of_side(ROOT, "square", POINT, "90")
    after = code.of_side(tree.root, "square", POINT, "90")
    assert before.keys() == after.keys() and len(before) == 1
    (line,) = code.differences(before, after)
    (name,) = before
    assert line.startswith(f"{name}: ")
    assert f"instructions {before[name]['instructions']} -> {after[name]['instructions']}" in line
    assert code.differences(before, before) == []

    with pytest.raises(UserError, match="unknown provider of square"):
        code.of_side(ROOT, "square", POINT.model_copy(update={"provider": "nope"}), "90")


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
