"""Statistics of paired times: intervals cover the true ratio as often as they claim, and verdicts are
rarely wrong."""

from collections import Counter
from math import exp, inf

import numpy as np
import pytest

from kernel_pipeline.statistics.verdicts import Estimate, Rule, deviation, estimate, pooled, verdicts

RULE = Rule()
ROUNDS = 5
DEVIATION = 0.003 * 2**0.5
"""The standard deviation of a ratio's logarithm if the times of processes vary by 0.3 %."""


def ratios(random: np.random.Generator, true: float, rounds: int = ROUNDS) -> list[float]:
    return [true * exp(one) for one in random.normal(0, DEVIATION, rounds)]


def asked(
    random: np.random.Generator, true: float, count: int, rule: Rule, noise: float = 0.0, rounds: int = ROUNDS
) -> list[str]:
    estimates = {i: estimate(ratios(random, true, rounds), rule, noise) for i in range(count)}
    return list(verdicts(estimates, rule).values())


def test_an_interval_holds_the_ratio_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    found = [estimate(ratios(random, 1.02), RULE) for _ in range(2000)]
    held = sum(one.low <= 1.02 <= one.high for one in found) / len(found)
    assert held == pytest.approx(RULE.confidence, abs=0.02)


def test_equal_kernels_are_the_same_and_hardly_ever_different() -> None:
    found = asked(np.random.default_rng(1), 1.0, 2000, RULE)
    assert found.count("same") / len(found) >= 0.95
    assert (found.count("faster") + found.count("slower")) / len(found) <= 0.01


@pytest.mark.parametrize(("true", "word"), [(1.02, "slower"), (1 / 1.02, "faster")])
def test_two_percent_are_found(true: float, word: str) -> None:
    """At most 5 % stay undecided, which a further round would decide."""
    found = asked(np.random.default_rng(2), true, 1000, RULE)
    assert found.count(word) / len(found) >= 0.95
    assert set(found) <= {word, "undecided"}


def test_many_questions_at_once_find_no_more_that_is_not_there() -> None:
    """Without the correction, each test at 5 % would call one kernel in twenty different."""
    random = np.random.default_rng(4)
    rule = Rule(margin=0.0)
    wrong = 0
    for _ in range(40):
        found = asked(random, 1.0, 100, rule)
        wrong += any(word != "undecided" for word in found)
    assert wrong / 40 <= 0.15


def test_rounds_that_agree_by_chance_are_weighed_with_the_noise_that_is_known() -> None:
    agreed = estimate([1.0131, 1.0132], RULE)
    assert verdicts({0: agreed}, RULE) == {0: "slower"}
    known = estimate([1.0131, 1.0132], RULE, noise=0.004)
    assert verdicts({0: known}, RULE) == {0: "undecided"}
    assert known.ratio == agreed.ratio


def test_where_the_noise_is_known_two_rounds_decide_more_and_are_as_seldom_wrong() -> None:
    equal = asked(np.random.default_rng(5), 1.0, 1000, RULE, DEVIATION, rounds=2)
    alone = asked(np.random.default_rng(5), 1.0, 1000, RULE, rounds=2)
    assert equal.count("same") / len(equal) >= 0.8
    assert alone.count("same") / len(alone) <= 0.4
    assert {"faster", "slower"}.isdisjoint({*equal, *alone})
    slower = asked(np.random.default_rng(6), 1.02, 1000, RULE, DEVIATION, rounds=3)
    assert slower.count("slower") / len(slower) >= 0.95
    held = [estimate(ratios(np.random.default_rng(i), 1.02, 2), RULE, DEVIATION) for i in range(1500)]
    assert sum(one.low <= 1.02 <= one.high for one in held) / len(held) == pytest.approx(0.9, abs=0.03)


def test_the_noise_of_equal_rivals_is_found_though_some_points_are_disturbed() -> None:
    random = np.random.default_rng(7)
    logs = [list(random.normal(0.0, 0.003, size=4)) for _ in range(1000)]
    assert deviation(logs) == pytest.approx(0.003, rel=0.05)
    disturbed = [[10 * one for one in some] if i % 20 == 0 else some for i, some in enumerate(logs)]
    assert deviation(disturbed) == pytest.approx(0.003, rel=0.1)
    assert deviation([[0.004]]) == pytest.approx(0.004 / 0.6745, rel=1e-3)


def test_rounds_of_different_rivals_tell_the_noise_together_whatever_their_ratios_are() -> None:
    random = np.random.default_rng(8)
    logs = [list(random.normal(random.normal(), 0.003, size=2)) for _ in range(1000)]
    assert pooled(logs) == pytest.approx(0.003, rel=0.05)
    assert pooled([*logs[:9], [0.1]]) == 0.0, "nine and one of a single round are too few"
    assert pooled(logs[:10]) > 0.0


def test_without_two_rounds_there_is_no_interval() -> None:
    assert estimate([], RULE) == Estimate(0, 1.0, 0.0, inf, 1.0)
    assert estimate([1.5], RULE) == Estimate(1, 1.5, 0.0, inf, 1.0)
    assert verdicts({"a": estimate([1.5], RULE)}, RULE) == {"a": "undecided"}
    assert verdicts({}, RULE) == {}


def test_no_interval_is_too_wide_to_be_written() -> None:
    wild = estimate([1e-3, 1e3], RULE)
    assert (wild.low, wild.high) == (pytest.approx(exp(-10)), pytest.approx(exp(10)))
    assert verdicts({0: wild}, RULE) == {0: "undecided"}


def test_equal_times_are_the_same() -> None:
    """A clock with few digits can give equal times."""
    assert verdicts({0: estimate([1.0, 1.0], RULE)}, RULE) == {0: "same"}
    assert verdicts({0: estimate([1.5, 1.5], RULE)}, RULE) == {0: "slower"}


def test_looks_after_every_round_multiply_the_errors_as_the_documentation_says() -> None:
    """A ratio that is exactly the margin, looked at once and after each of rounds 5 to 20."""
    random = np.random.default_rng(0)
    comparisons = 400
    first, repeated = Counter[str](), Counter[str]()
    for _ in range(comparisons):
        held = ratios(random, 1 + RULE.margin, 20)
        looks = (verdicts({0: estimate(held[:count], RULE)}, RULE)[0] for count in range(5, 21))
        found = [*looks]
        first[found[0]] += 1
        repeated[next((one for one in found if one != "undecided"), "undecided")] += 1
    assert first["slower"] / comparisons == pytest.approx(0.05, abs=0.03)
    assert repeated["slower"] / comparisons == pytest.approx(0.17, abs=0.04)
    assert repeated["same"] / comparisons == pytest.approx(0.17, abs=0.04)
