"""Outputs of every dtype: what is right is found right, what is off by one bit, inverted or never written is
not."""

import os
from collections.abc import Iterator

import pytest

from kernel_pipeline.execution.faults import FaultyError
from kernel_pipeline.execution.protocol import Begin, Check, Checked, Offer, Prepare, Time
from kernel_pipeline.execution.provider_runner import ProviderRunner
from kernel_pipeline.execution.verifier import Verifier
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.timing import stopwatch
from tests.planted.kinds import DTYPES
from tests.planted.tree import PLANTED

WHERE = str(PLANTED / "kinds")


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Verifier, ProviderRunner]]:
    """A judge and a worker in this process."""
    memory = os.memfd_create("test")
    yield Verifier("cpu", 0, memory), ProviderRunner("cpu", TimingSettings(), memory, pytest.fail)
    os.close(memory)


def checked(both: tuple[Verifier, ProviderRunner], where: str, point: Point) -> list[Checked]:
    """Return the verifier's answers for calls on inputs that nobody knew before."""
    judge, trial = both
    prepared = judge.prepare(Prepare(where=where, point=point))
    found = []
    for edition in range(3):
        judge.offer(Offer(edition=edition))
        trial.begin(
            Begin(
                where=where,
                point=point,
                shared=prepared.shared,
                bytes=prepared.bytes,
                interpreted=False,
                canary=None,
                again=edition > 0,
            )
        )
        found.append(judge.check(Check(edition=edition)))
    return found


def kinds(provider: str, dtype: str) -> Point:
    return Point(kernel="kinds", provider=provider, problem=Values({"elements": 1001, "dtype": dtype}))


@pytest.mark.parametrize("dtype", DTYPES)
def test_right_is_right_and_wrong_is_wrong(both: tuple[Verifier, ProviderRunner], dtype: str) -> None:
    for one in checked(both, WHERE, kinds("torch", dtype)):
        assert (one.error, one.max_abs_err, one.used) == (None, 0.0, 0.0)
    for provider, count in (("off_by_one", "1"), ("inverted", "1001")):
        for one in checked(both, WHERE, kinds(provider, dtype)):
            assert one.error is not None and one.error.startswith(f"{count} of 1001 elements are wrong"), (
                provider
            )
    for provider in ("unwritten", "half_written"):
        assert checked(both, WHERE, kinds(provider, dtype))[0].error is not None, provider
    real = checked(both, WHERE, kinds("real_alone", dtype))
    assert all(("the imaginary part is 0" in str(one.error)) == dtype.startswith("complex") for one in real)


def test_a_large_ring_is_asked_for_and_named(
    both: tuple[Verifier, ProviderRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopwatch, "last_level_cache", lambda device: 1 << 14)
    checked(both, WHERE, kinds("torch", "float32"))
    usual, large, after = (both[1].time(Time(large_ring=is_large)) for is_large in (False, True, False))
    assert large.sets > 10 * usual.sets and after.sets == usual.sets
    assert [one.timing.large_ring for one in (usual, large, after)] == [False, True, False]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_kernel_that_compares_by_itself(both: tuple[Verifier, ProviderRunner], dtype: str) -> None:
    where = str(PLANTED / "top")

    def said(provider: str) -> set[str | None]:
        problem = Values({"rows": 64, "columns": 1000, "largest": 8, "dtype": dtype})
        point = Point(kernel="top", provider=provider, problem=problem)
        return {one.error for one in checked(both, where, point)}

    assert said("torch") == said("by_sort") == {None}, "whichever of equal ones it names"
    assert said("next_place") == {"some places hold other values"}
    assert said("out_of_order") == said("nothing") == {"these are not the largest values"}
    twice = said("twice_the_first")
    assert twice <= {None, "some places are named twice"}
    assert (None in twice) == (dtype == "float32"), "ties are rare in float32, and everywhere in bfloat16"


def test_a_comparison_that_gives_no_sentence_is_named(
    both: tuple[Verifier, ProviderRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernel_pipeline import loading

    module = loading.load(str(PLANTED / "top")).module("reference.py")
    monkeypatch.setattr(module, "compare", lambda *_: True)
    problem = Values({"rows": 5, "columns": 1000, "largest": 8, "dtype": "float32"})
    with pytest.raises(FaultyError, match=r"returned bool, not a sentence"):
        checked(both, str(PLANTED / "top"), Point(kernel="top", provider="torch", problem=problem))
