"""Other sizes than those given, at which the problem's own code has an answer."""

from collections.abc import Callable, Sequence

import pytest

from kernel_pipeline.judging.definition import Definition
from kernel_pipeline.judging.facts import ProblemFacts
from kernel_pipeline.judging.formats import prime_below
from kernel_pipeline.records.base import Values
from pipeline.verdicts.other_sizes import OtherSizes

MAIN = Values({"rows": 64, "features": 256, "heads": 4, "name": "word"})


@pytest.mark.parametrize(
    ("fits", "found", "skipped"),
    [
        (lambda one: True, [(7, 7), (61, 251)], []),
        (lambda one: one["features"] % 4 == 0, [(7, 256), (61, 256)], ["features=7", "features=251"]),
        (lambda one: one["rows"] >= 16, [(64, 7), (61, 251)], ["rows=7"]),
        (lambda one: one == MAIN, [], ["rows=7", "features=7", "rows=61", "features=251"]),
        # Both fit alone.
        (
            lambda one: 320 in (one["rows"] + 256, one["features"] + 64),
            [],
            ["rows=7 features=7", "rows=61 features=251"],
        ),
    ],
)
def test_sizes_change_together_or_those_that_can(
    fits: Callable[[Values], bool], found: list[tuple[int, int]], skipped: list[str]
) -> None:
    def probed(problems: Sequence[Values]) -> dict[Values, ProblemFacts]:
        facts = {}
        for one in problems:
            workload = Values({name: value for name, value in one.items() if name != "distribution"})
            facts[one] = ProblemFacts(skipped=None if fits(workload) else "it fails")
        return facts

    other = OtherSizes(MAIN, ("rows", "features"), probed)
    workloads = other.workloads()
    assert [(one["rows"], one["features"]) for one in workloads] == found
    assert {(one["heads"], one["name"]) for one in workloads} <= {(4, "word")}
    assert list(other.skipped) == skipped


def test_a_prime_below_a_size() -> None:
    assert [prime_below(size) for size in (1, 2, 3, 4, 16, 17, 4096, 2**40)] == [
        *(1, 2, 2, 3, 13, 13, 4093, 2**40 - 87)
    ]


def test_an_axis_whose_constraint_is_not_checked_keeps_its_size() -> None:
    made = Definition.from_dict(
        {
            "name": "x",
            "op_type": "x",
            "axes": {name: {"type": "var"} for name in ("rows", "total", "pages")},
            "inputs": {"x": {"shape": ["rows"], "dtype": "float32"}},
            "outputs": {"y": {"shape": ["rows"], "dtype": "float32"}},
            "reference": "x",
            "constraints": ["rows >= 1", "total == ends[-1].item()", "pages % 2 == 0"],
        }
    )
    assert made.unchecked({"rows": 1, "total": 1, "pages": 2}) == {"total": "total == ends[-1].item()"}
