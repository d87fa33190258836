"""Problems that are too large to be verified: of real kernels, on an 80 GB GPU and on a 141 GB one."""

import pytest

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from pipeline.execution import memory_limit
from pipeline.points.catalog import find
from pipeline.points.plan import Plan, Target, plan

H100, H200 = 81559 << 20, 143771 << 20
HOPPER = Target("cuda", Gpu((9, 0), 132, 232448, 50 << 20))


def planned(dtype: str, columns: int = 262144) -> Plan:
    return plan(
        find("softmax"), "standard", HOPPER, {"columns": (columns,), "dtype": (dtype,)}, ["torch", "cuda"]
    )


def test_what_does_not_fit_is_no_point_and_is_counted_with_the_reason() -> None:
    whole = planned("float32")
    found = memory_limit.within(whole, loading.load("softmax"), H100, ())
    assert found.points == () and whole.points
    count = sum(point.provider == "cuda" for point in whole.points)
    line = f"cuda: {count} configurations left out: too large to be verified here: about 90 GB > 86 GB"
    assert line in found.refusals()


@pytest.mark.parametrize(("dtype", "memory"), [("bfloat16", H100), ("float32", H200)])
def test_what_was_measured_there_fits(dtype: str, memory: int) -> None:
    whole = planned(dtype)
    assert memory_limit.within(whole, loading.load("softmax"), memory, ()) == whole


def test_what_was_measured_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = planned("float32")
    known = whole.points[:1]
    assert memory_limit.within(whole, loading.load("softmax"), H100, known).points == known


def test_of_small_problems_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(*arguments: object) -> int:
        raise AssertionError("it takes torch")

    monkeypatch.setattr(memory_limit, "needs", needs)
    whole = planned("float32", 16384)
    assert memory_limit.within(whole, loading.load("softmax"), H100, ()) == whole
