"""The rule between tuned problems, by hand."""

import math

import pytest

from kernel_pipeline import loading
from kernel_pipeline.declared import Value
from kernel_pipeline.ops import rule
from kernel_pipeline.ops.prediction import is_faster_all_around
from kernel_pipeline.ops.rule import Neighbour, Tuned, pick

SCALES = {"rows": rule.OTHER_NUMBER, "columns": 1.0}


def tuned(columns: int, near: dict[str, float], rows: int = 64, **more: Value) -> Tuned:
    problem: dict[str, Value] = {"rows": rows, "columns": columns, "dtype": "float32", **more}
    return Tuned(problem, True, near)


def picked(
    some: list[Tuned], columns: int, rows: int = 64, dtype: str = "float32", within: bool = True
) -> str:
    problem: dict[str, Value] = {"rows": rows, "columns": columns, "dtype": dtype}
    found = pick(some, problem, within, SCALES, lambda label: True)
    return "" if found is None else found.label


def test_what_is_good_on_both_sides_comes_before_what_is_the_best_on_one() -> None:
    some = [tuned(256, {"a": 1.0, "b": 1.02}), tuned(1024, {"c": 1.0, "b": 1.01})]
    assert picked(some, 512) == "b"


def test_the_nearer_problem_counts_for_more() -> None:
    some = [tuned(256, {"a": 1.0, "b": 1.1}), tuned(4096, {"b": 1.0, "a": 1.1})]
    assert (picked(some, 300), picked(some, 4000)) == ("a", "b")


def test_a_doubling_of_what_no_size_stands_for_counts_less() -> None:
    some = [tuned(512, {"a": 1.0, "b": 1.1}, rows=256), tuned(1024, {"b": 1.0, "a": 1.1}, rows=64)]
    # Two doublings of the rows away from the first, one of the columns from the second.
    assert picked(some, 512) == "a"


def test_a_dimension_whose_values_are_listed_counts_for_more_than_the_size() -> None:
    kernel = loading.load("attention").kernel
    scales = rule.scales(kernel)
    assert (scales["seq_q"], scales["heads"]) == (1.0, rule.OTHER_NUMBER)

    def attention(seq: int, head_dim: int, near: dict[str, float]) -> Tuned:
        return Tuned({"seq_q": seq, "head_dim": head_dim}, False, near)

    some = [attention(8192, 128, {"a": 1.0, "b": 1.2}), attention(2048, 64, {"b": 1.0, "a": 1.15})]
    found = pick(some, {"seq_q": 8192, "head_dim": 64}, False, scales, lambda _: True)
    assert found is not None and found.label == "b"


def test_the_distance_is_that_of_the_nearest_on_this_side_of_the_cache() -> None:
    some = [tuned(256, {"b": 1.0}), tuned(1024, {"c": 1.0, "b": 1.21})]
    problem: dict[str, Value] = {"rows": 64, "columns": 512, "dtype": "float32"}
    for columns, doublings in ((512, 1.0), (2048, 1.0), (128, 1.0), (256, 0.0)):
        found = pick(some, problem | {"columns": columns}, True, SCALES, lambda _: True)
        assert found is not None and found.distance == pytest.approx(doublings)
    found = pick(some, problem, False, SCALES, lambda _: True)
    assert found is not None and found.distance == math.inf


def test_another_dtype_tells_nothing() -> None:
    assert picked([tuned(256, {"a": 1.0})], 256, dtype="bfloat16") == ""


def test_the_other_side_of_the_cache_counts_only_where_this_one_has_too_few() -> None:
    near = [tuned(512 + number, {"a": 1.0}) for number in range(rule.NEIGHBOURS)]
    far = [Tuned({**near[0].problem, "columns": 1 << 20}, False, {"b": 1.0})] * rule.NEIGHBOURS
    assert (picked([*near, *far], 512, within=False), picked([*near, *far], 512)) == ("b", "a")
    assert picked(near, 512, within=False) == "a"


def test_what_failed_next_to_it_and_what_does_not_fit_is_not_taken() -> None:
    best = tuned(256, {"a": 1.0, "b": 1.2})
    broken = Tuned(tuned(1024, {}).problem, True, {"b": 1.0}, frozenset({"a"}))
    assert picked([best, broken], 300) == "b"
    problem: dict[str, Value] = {"rows": 64, "columns": 300, "dtype": "float32"}
    assert pick([best], problem, True, SCALES, lambda label: label != "a") == rule.Pick(
        "b", pytest.approx(math.log2(300 / 256))
    )
    assert pick([best], problem, True, SCALES, lambda label: False) is None


@pytest.mark.parametrize(
    ("ratios", "is_faster"),
    [
        ([1.6, 1.2, 1.2], True),
        ([1.6, 1.2], False),  # too few to agree
        ([1.6, 1.2, 1.1], False),  # not clearly faster at each
        ([12.0, 0.5], True),  # a neighbour that does not count
        ([12.0], True),
    ],
)
def test_one_near_problem_decides_only_with_all_far_ones_or_by_a_large_factor(
    ratios: list[float], is_faster: bool
) -> None:
    """The first is near. The others are so far that they hardly have a weight."""
    around = [
        Neighbour(
            Tuned({"n": n}, within_l2=True, near={"ours": 1.0}, us=10.0, baseline_us=10.0 * ratio),
            distance=0.5 if n == 0 else 5.0,
        )
        for n, ratio in enumerate(ratios)
    ]
    assert is_faster_all_around(around, "ours") is is_faster
