import pytest

from kernel_pipeline.timing.stopping import Budget, Confidence, Count, Either


def test_count_stops_at_its_number() -> None:
    assert [Count(3).done([1.0] * n, 1e9) for n in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("samples", "elapsed_s", "done"), [(2, 100.0, False), (3, 0.9, False), (3, 1.0, True), (9, 5.0, True)]
)
def test_budget_stops_when_the_time_is_spent_and_there_is_a_median(
    samples: int, elapsed_s: float, done: bool
) -> None:
    assert Budget(1.0).done([1.0] * samples, elapsed_s) is done


def test_confidence_needs_both_a_narrow_interval_and_enough_samples() -> None:
    criterion = Confidence(target=0.01, min_samples=20)
    assert not criterion.done([], 1e9)
    assert not criterion.done([1.0] * 19, 1e9)
    assert criterion.done([1.0] * 20, 0.0)
    assert not criterion.done([1.0, 1.1] * 10, 1e9)


def test_either_stops_with_the_first() -> None:
    stop = Either(Count(5), Budget(1.0))
    assert not stop.done([1.0] * 4, 0.5)
    assert stop.done([1.0] * 5, 0.5)
    assert stop.done([1.0] * 4, 1.5)
