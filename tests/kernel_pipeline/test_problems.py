"""Problems and parameters from values by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kernel_pipeline import problems
from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, one_of, same_as
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point


@dataclass(frozen=True, kw_only=True)
class Problem:
    rows: int = 4096
    columns: int
    heads: int = 8
    groups: int | None = same_as("heads")
    dtype: str = one_of("float32", "bfloat16")
    causal: bool = False


def test_what_is_not_given_has_its_default_or_is_as_another() -> None:
    made = problems.make(Problem, {"columns": 3, "heads": 2})
    assert made == Problem(columns=3, heads=2, groups=2)
    assert problems.make(Problem, {"columns": 3, "heads": 2, "groups": 1}).groups == 1
    assert problems.make(Problem, {"columns": 3, "causal": 1}).causal is True


def test_values_are_those_of_all_names_in_their_declared_order() -> None:
    made = problems.make(Problem, {"dtype": "bfloat16", "columns": 3})
    found = problems.values_of(made)
    assert list(found.items()) == [
        *(("rows", 4096), ("columns", 3), ("heads", 8), ("groups", 8)),
        *(("dtype", "bfloat16"), ("causal", False)),
    ]
    assert problems.make(Problem, found) == made
    assert problems.values_of(None) == Values()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "columns is missing: Problem needs a value for it."),
        (
            {"columns": 3, "colour": 1},
            "colour is not a field of Problem, which has rows, columns, heads, groups, dtype, causal.",
        ),
        ({"columns": 0}, "columns: must be at least 1, not 0."),
        ({"columns": True}, "columns: must be a whole number, not True."),
        ({"columns": "3"}, "columns: must be a whole number, not '3'."),
        ({"columns": 3, "dtype": "float64"}, "dtype: must be one of float32, bfloat16, not float64."),
        ({"columns": 3, "dtype": 1}, "dtype: must be a word, not 1."),
        ({"columns": 3, "causal": 2}, "causal: must be true or false, not 2."),
        ({"columns": 3, "causal": "true"}, "causal: must be true or false, not 'true'."),
        ({"columns": 3, "groups": 0}, "groups: must be at least 1, not 0."),
    ],
    ids=str,
)
def test_what_can_not_be_is_said(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as raised:
        problems.make(Problem, values)
    assert str(raised.value) == said


@dataclass(frozen=True, kw_only=True)
class Wider:
    """A problem that has got a dimension since rows were measured."""

    columns: int
    layout: str = one_of("row", "column", omit_default=True)


def test_a_point_leaves_out_a_dimension_that_is_omitted_at_its_default() -> None:
    assert problems.identity_of(Wider(columns=3)) == Values({"columns": 3})
    assert problems.make(Wider, problems.identity_of(Wider(columns=3))) == Wider(columns=3)
    other = Wider(columns=3, layout="column")
    assert problems.identity_of(other) == problems.values_of(other)
    assert problems.values_of(Wider(columns=3)) == Values({"columns": 3, "layout": "row"})


def test_a_row_from_before_the_dimension_is_declared_still() -> None:
    provider = Provider("torch", "torch.py:f")
    kernel = Kernel(
        problem=Wider,
        size=("columns",),
        work=lambda problem: Work(1, {}),
        tolerance=lambda problem: Tolerance(0, 0),
        providers=(provider,),
    )
    before = Point(kernel="wider", provider="torch", problem=Values({"columns": 3}))
    assert problems.declares(kernel, before)
    spelled = Values({"columns": 3, "layout": "row"})
    assert not problems.declares(kernel, before.replace(problem=spelled))
