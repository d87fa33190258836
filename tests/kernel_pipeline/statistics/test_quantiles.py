import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_pipeline.statistics.quantiles import median_interval, quantile, relative_half_width

times = st.lists(st.floats(min_value=1e-3, max_value=1e6), min_size=1, max_size=200)


@given(times, st.floats(min_value=0, max_value=1))
def test_quantile_is_numpys(samples: list[float], q: float) -> None:
    assert quantile(sorted(samples), q) == pytest.approx(float(np.quantile(samples, q)), rel=1e-9)


@pytest.mark.parametrize("n", range(1, 6))
def test_the_first_and_the_last_sample_are_quantiles(n: int) -> None:
    ordered = [2.0**place for place in range(n)]
    assert (quantile(ordered, 0.0), quantile(ordered, 1.0)) == (1.0, 2.0 ** (n - 1))


@given(times)
def test_the_interval_holds_the_median_and_lies_within_the_samples(samples: list[float]) -> None:
    ordered = sorted(samples)
    low, high = median_interval(ordered)
    assert ordered[0] <= low <= quantile(ordered, 0.5) <= high <= ordered[-1]
    assert relative_half_width(samples) == relative_half_width(ordered)


@pytest.mark.parametrize("n", [*range(6, 41), 99, 100, 1000, 1024, 5000])
def test_the_interval_covers_the_median_with_95_percent_and_not_much_more(n: int) -> None:
    """The coverage is exact: the number of samples below the median is binomial with p = 1/2 for any
    distribution."""
    low, high = median_interval(range(1, n + 1))  # the samples are their own ranks
    coverage = sum(math.comb(n, k) for k in range(int(low), int(high))) / 2**n
    assert 0.95 <= coverage <= (0.999 if n < 20 else 0.99)


def test_no_narrower_interval_would_cover_the_median_with_95_percent() -> None:
    """For large n, the normal approximation may put each end one sample further out."""
    for n in [*range(6, 260), 999, 3000]:
        low, high = (int(rank) for rank in median_interval(range(1, n + 1)))
        covered = [sum(math.comb(n, k) for k in range(low + by, high - by)) for by in (0, 1, 2)]
        enough = [20 * count >= 19 * 2**n for count in covered]
        assert enough == [True, False, False] or (n > 200 and enough == [True, True, False]), n


def test_the_interval_covers_the_median_of_skewed_times() -> None:
    dice = random.Random(0)
    true_median = math.exp(1.0)
    trials = 2000
    hits = 0
    for _ in range(trials):
        low, high = median_interval(sorted(dice.lognormvariate(1.0, 0.5) for _ in range(30)))
        hits += low <= true_median <= high
    assert 0.92 <= hits / trials <= 0.99


@pytest.mark.parametrize("n", range(1, 6))
def test_few_samples_have_their_whole_range_as_the_interval(n: int) -> None:
    assert median_interval([float(i) for i in range(n)]) == (0.0, n - 1)


def test_relative_half_width() -> None:
    assert relative_half_width([]) == math.inf
    assert relative_half_width([5.0]) == 0.0
    assert relative_half_width([9.0, 10.0, 11.0]) == pytest.approx(0.1)
    assert relative_half_width([100.0, 1.0, 10.0]) == pytest.approx(4.95)
