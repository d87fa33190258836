"""A record claims nothing it has no right to, and a ledger's line gives back the record it was made from."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.measure.record import Measurement, Outcome, State, Status
from tests import factory

STATUSES = get_args(Status)
TIMING = factory.timing(10.0)


@pytest.mark.parametrize(
    "claim",
    [
        {"status": "ok"},
        {"status": "ok", "timing": TIMING},
        {"status": "ok", "timing": TIMING, "max_abs_err": 0.0, "error": "but"},
        {"status": "verified"},
        {"status": "verified", "max_abs_err": 0.0, "timing": TIMING},
        {"status": "verified", "max_abs_err": 0.0, "error": "but"},
        {"status": "verified", "max_abs_err": 0.0, "state": State()},
        *({"status": status} for status in STATUSES if status not in ("ok", "verified")),
        *(
            {"status": status, "error": "why", "max_abs_err": 0.0, "timing": TIMING}
            for status in STATUSES
            if status not in ("ok", "verified")
        ),
        {"status": "incorrect", "error": "why", "state": State()},
        {"status": "fine", "max_abs_err": 0.0},
        {"status": "verified", "max_abs_err": 0.0, "speed": 1.0},
    ],
    ids=str,
)
def test_a_contradictory_outcome_is_refused(claim: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Outcome(shape=(1,), **claim)


def test_a_rate_and_a_timing_come_together() -> None:
    timed, failed = factory.measurement(), factory.measurement(status="timeout")
    with pytest.raises(ValidationError, match="rate"):
        Measurement.model_validate(timed.model_dump() | {"rate": None})
    with pytest.raises(ValidationError, match="rate"):
        Measurement.model_validate(failed.model_dump() | {"rate": timed.model_dump()["rate"]})


def test_records_do_not_change() -> None:
    with pytest.raises(ValidationError):
        factory.measurement().outcome.status = "incorrect"  # type: ignore[misc]


@given(
    status=st.sampled_from(STATUSES),
    error=st.text(min_size=1).filter(str.strip),
    median_us=st.floats(min_value=1e-3, max_value=1e9),
    size=st.integers(min_value=1, max_value=2**70),
    axes=st.tuples(*[st.none() | st.integers(1, 2**20)] * 4),
    dirty=st.booleans(),
)
def test_a_line_gives_back_the_measurement(
    status: Status,
    error: str,
    median_us: float,
    size: int,
    axes: tuple[int | None, int | None, int | None, int | None],
    dirty: bool,
) -> None:
    block_size, num_warps, num_stages, rows = axes
    row = factory.measurement(
        size=size,
        block_size=block_size,
        num_warps=num_warps,
        num_stages=num_stages,
        rows=rows,
        status=status,
        error=error,
        median_us=median_us,
        dirty=dirty,
    )
    line = json.dumps(row.row())
    assert "\n" not in line
    assert ("rows" in json.loads(line)) == (rows is not None), "older lines stay as they are"
    assert Measurement.from_row(json.loads(line)) == row


@pytest.mark.parametrize("status", STATUSES)
def test_every_line_has_every_field(status: Status) -> None:
    flat = factory.measurement(status=status).row()
    assert list(flat) == list(factory.measurement().row())
    numbers = ("median_us", "samples_us", "n_samples", "gbps", "tflops", "valid")
    assert all((flat[name] is not None) == (status == "ok") for name in numbers)


@given(st.text())
def test_an_error_is_one_short_line(text: str) -> None:
    error = Outcome(status="runtime_error", error=text, shape=(1,)).error
    assert error is not None
    assert len(error) <= 500
    assert len(error.splitlines()) <= 1


@pytest.mark.parametrize("change", [{"status": "ok"}, {"median_us": 1.0}, {"colour": "red"}, {"origin": 1}])
def test_an_edited_line_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Measurement.from_row(factory.measurement(status="timeout").row() | change)
