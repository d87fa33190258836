"""What other processes and GPUs add to a time, from pairs whose distances were planted."""

import pytest

from kernel_pipeline.records.measurement import Timing
from pipeline.store import spread
from tests import factory


def timing(us: float, rel_ci: float = 0.0, excess_us: float = 0.0) -> Timing:
    return factory.timing(us).replace(rel_ci=rel_ci, excess_us=excess_us)


def test_nine_of_ten_pairs_lie_within_what_is_added_and_it_is_found_by_duration() -> None:
    short = [(timing(2.0), timing(2.0 * (1 + 0.001 * number))) for number in range(1, 11)]
    long = [(timing(500.0), timing(500.0 * 1.02))] * 10
    few = [(timing(5e3), timing(6e3))] * 9
    added = spread.found([*short, *long, *few])
    assert added == {"3us": pytest.approx(0.009, rel=0.01), "1ms": pytest.approx(0.0198, rel=0.01)}
    inside = [spread.interval_us(before, added)[1] >= after.median_us for before, after in short]
    assert inside[:8] == [True] * 8 and not inside[9]


def test_what_samples_tell_themselves_is_not_added_again() -> None:
    own = 0.02 * spread.OF_95
    pairs = [(timing(50.0, 0.02), timing(50.0 * 1.05, 0.02))] * 10
    (added,) = spread.found(pairs).values()
    assert added**2 + 2 * own**2 == pytest.approx(0.04879**2, rel=0.01)
    assert spread.found([(timing(50.0, 0.02), timing(50.0, 0.02))] * 10) == {"100us": 0.0}


def test_an_interval_joins_both_in_quadrature_and_reaches_down_by_what_was_late() -> None:
    one = timing(10.0, rel_ci=0.01, excess_us=0.3)
    half = ((0.01 * spread.OF_95) ** 2 + 0.02**2) ** 0.5
    assert spread.half_width(one, {"10us": 0.02}) == pytest.approx(half)
    assert spread.interval_us(one, {"10us": 0.02}) == pytest.approx((10 - 10 * half - 0.3, 10 + 10 * half))
    assert spread.half_width(one, {"3us": 9.0}) == pytest.approx(0.01 * spread.OF_95)
