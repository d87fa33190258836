"""Named values and points: what is equal, and the JSON that worker, ledger and command line share."""

import copy
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_pipeline.declared import Value
from kernel_pipeline.records.base import ValidationError, Values, digest
from kernel_pipeline.records.point import Point, order

words = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=20)
values = st.dictionaries(
    st.from_regex(r"[^\W\d]\w{0,9}", fullmatch=True).filter(str.isidentifier),
    st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    max_size=5,
)


@given(values)
def test_values_are_a_mapping_whose_order_does_not_count(given_values: dict[str, Value]) -> None:
    made, turned = Values(given_values), Values(dict(reversed(given_values.items())))
    assert dict(made) == given_values
    assert list(made) == list(given_values), "but it is kept"
    assert made == turned
    assert hash(made) == hash(turned)
    assert digest(dict(made)) == digest(dict(turned))
    assert all(name in made and made[name] == value for name, value in given_values.items())


def test_what_json_tells_apart_is_told_apart() -> None:
    flag, number, word = Values({"a": True}), Values({"a": 1}), Values({"a": "1"})
    assert len({flag, number, word, Values()}) == 4
    assert len({digest(dict(one)) for one in (flag, number, word)}) == 3
    assert flag != number
    assert flag != {"a": True}, "a mapping that may change is none"


def test_values_do_not_change() -> None:
    given_values: dict[str, Value] = {"a": 1}
    made = Values(given_values)
    given_values["a"] = 2
    assert made["a"] == 1
    with pytest.raises(TypeError):
        made["a"] = 2  # type: ignore[index]


@pytest.mark.parametrize("value", [math.inf, math.nan, None, [], ["a"], {"b": 1}])
def test_nothing_but_numbers_flags_and_words_is_a_value(value: object) -> None:
    for validate in (Point.from_dict, lambda one: Point.from_json(json.dumps(one))):
        with pytest.raises(ValidationError):
            validate({"kernel": "k", "provider": "p", "problem": {"a": value}})


@given(values, values)
def test_a_points_json_gives_it_back(problem: dict[str, Value], parameters: dict[str, Value]) -> None:
    point = Point(kernel="k", provider="p", problem=Values(problem), parameters=Values(parameters))
    for back in (
        Point.from_json(point.to_json().decode()),
        Point.from_dict(json.loads(json.dumps(point.to_dict()))),
    ):
        assert back == point
        assert hash(back) == hash(point)
        assert list(back.problem) == list(point.problem)
        assert [type(v) for v in back.problem.values()] == [type(v) for v in problem.values()]


def test_a_points_json_is_what_a_reader_expects() -> None:
    point = Point(
        kernel="matmul",
        provider="triton_tiled",
        problem=Values({"m": 16, "dtype": "bfloat16", "causal": True}),
        parameters=Values({"block_m": 64}),
    )
    assert json.loads(point.to_json().decode()) == {
        "kernel": "matmul",
        "provider": "triton_tiled",
        "problem": {"m": 16, "dtype": "bfloat16", "causal": True},
        "parameters": {"block_m": 64},
    }


def test_copies_are_equal_and_of_equal_hash() -> None:
    point = Point(kernel="k", provider="p", problem=Values({"a": 1, "b": "c", "d": True}))
    for other in (copy.deepcopy(point), pickle.loads(pickle.dumps(point)), point.replace()):
        assert other == point
        assert {point: 1}[other] == 1


def test_points_are_ordered_by_words_then_numbers() -> None:
    def point(provider: str, n: int, dtype: str = "bfloat16", **parameters: int | bool | str) -> Point:
        problem = Values({"n": n, "dtype": dtype})
        return Point(kernel="k", provider=provider, problem=problem, parameters=Values(parameters))

    wanted = [
        point("a", 9),
        point("a", 10),
        point("a", 9, "float32"),
        point("b", 1, block=2),
        point("b", 1, block=16),
        point("b", 1, block="wide"),
        point("c", 1, flag=False),
        point("c", 1, flag=True),
    ]
    turned = wanted[::-1]
    assert sorted(turned, key=order) == wanted
