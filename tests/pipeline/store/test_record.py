"""A record claims nothing it has no right to, and a ledger's line gives back the record it was made from."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_pipeline.declared import Value
from kernel_pipeline.records.base import ValidationError, Values
from kernel_pipeline.records.measurement import Measurement, Outcome, Parts, State, Status, noise_class
from kernel_pipeline.records.point import Point
from pipeline.store import provenance
from pipeline.store.rows import Reader, encode
from tests import factory

STATUSES = get_args(Status)
TIMING = factory.timing(10.0)
NAMES = st.from_regex(r"[^\W\d]\w{0,9}", fullmatch=True).filter(str.isidentifier)
WORDS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=20)


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
        Outcome(**claim)


def test_a_rate_and_a_timing_come_together() -> None:
    timed, failed = factory.measurement(), factory.measurement(status="timeout")
    with pytest.raises(ValidationError, match="rate"):
        Measurement.from_dict(timed.to_dict() | {"rate": None})
    with pytest.raises(ValidationError, match="rate"):
        Measurement.from_dict(failed.to_dict() | {"rate": timed.to_dict()["rate"]})


def test_records_do_not_change() -> None:
    with pytest.raises(AttributeError):
        factory.measurement().outcome.status = "incorrect"  # type: ignore[misc]


def read_back(line: bytes, row: Measurement) -> Measurement:
    """The row of a line whose run tells what a row's does."""
    run = provenance.run_of(row.origin, row.parts, row.point.kernel)
    found: Measurement = Reader(Path("ledger.jsonl"), Measurement, {run.run: run}).row(line)
    return found


@settings(max_examples=40)
@given(
    status=st.sampled_from(STATUSES),
    error=st.text(min_size=1).filter(str.strip),
    median_us=st.floats(min_value=2e-3, max_value=1e9),
    problem=st.dictionaries(NAMES, st.booleans() | st.integers(0, 2**53) | WORDS, max_size=5),
    parameters=st.dictionaries(
        NAMES, st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | WORDS, max_size=5
    ),
    dirty=st.booleans(),
)
def test_a_line_gives_back_the_measurement(
    status: Status,
    error: str,
    median_us: float,
    problem: dict[str, Value],
    parameters: dict[str, Value],
    dirty: bool,
) -> None:
    made = factory.measurement(status=status, error=error, median_us=median_us, dirty=dirty)
    point = Point(kernel="k", provider="p", problem=Values(problem), parameters=Values(parameters))
    row = factory.moved(made, point)
    line = encode(row)
    assert line.count(b"\n") == 1
    back = read_back(line, row)
    assert back == row
    assert encode(back) == line
    kinds = [type(value) for value in (*problem.values(), *parameters.values())]
    assert [type(v) for v in (*back.point.problem.values(), *back.point.parameters.values())] == kinds


@pytest.mark.parametrize("status", STATUSES)
def test_a_line_holds_what_is_the_rows_own_and_no_null(status: Status) -> None:
    line = encode(factory.measurement(status=status))
    row = json.loads(line)
    assert b"null" not in line
    assert "origin" not in row
    assert ("rate" in row, "timing" in row["outcome"], "state" in row["outcome"]) == (status == "ok",) * 3
    assert not {"gbps", "tflops"} & row.get("rate", {}).keys()
    assert row["parts"].keys() == {"source", "environment"}


def test_a_key_is_that_of_its_parts() -> None:
    row = factory.measurement()
    for name in Parts.__struct_fields__:
        parts = row.parts.replace(**{name: "edited"})
        assert parts.key != row.key
        assert parts.differences(row.parts) == [name]
        with pytest.raises(
            ValidationError, match=r"the key (does not match the parts|belongs to another point)"
        ):
            Measurement.from_dict(row.to_dict() | {"parts": parts.to_dict()})


def test_a_key_is_the_same_in_every_process_and_version() -> None:
    """A literal: were keys to change without a reason, every ledger would be measured again."""
    parts = Parts(point="1", source="2", measurement="3", environment="4", settings="5")
    assert parts.key == "7034f963cb171d94"


def test_what_was_seen_of_others_is_in_a_line_only_where_it_was_looked_for() -> None:
    """So that lines of a GPU that was ours alone stay as they are."""
    row = factory.measurement()
    state = row.outcome.state
    assert state is not None
    unseen = {"run_delay", "involuntary_switches", "neighbours"}
    assert not unseen & json.loads(encode(row))["outcome"]["state"].keys()
    seen = {"run_delay": 0.0, "involuntary_switches": 0, "neighbours": 2}
    row = row.with_state(state.replace(**seen))
    assert seen.items() <= json.loads(encode(row))["outcome"]["state"].items()
    assert read_back(encode(row), row) == row


def test_a_noise_floor_is_of_what_was_timed() -> None:
    timed, failed = factory.measurement(), factory.measurement(status="timeout")
    state = timed.with_noise_floor(0.01).outcome.state
    assert state is not None
    assert state.noise_floor == 0.01
    assert timed.with_noise_floor(0.01).key == timed.key
    assert failed.with_noise_floor(0.01) is failed


@given(st.text())
def test_an_error_is_one_short_line(text: str) -> None:
    error = Outcome(status="runtime_error", error=text).error
    assert error is not None
    assert len(error) <= 500
    assert len(error.splitlines()) <= 1


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": {"status": "ok"}},
        {"rate": {"gbps": 1.0}},
        {"colour": "red"},
        {"measured_at": "yesterday"},
        {"key": "0" * 16},
        {"point": {"kernel": "k", "provider": "p", "problem": {"n": 1.5}}},
        {"point": {"kernel": "k", "provider": "p", "problem": {"n": None}}},
    ],
    ids=str,
)
def test_an_edited_line_is_refused(change: dict[str, Any]) -> None:
    row = factory.measurement(status="timeout")
    with pytest.raises(ValidationError):
        read_back(json.dumps(json.loads(encode(row)) | change).encode(), row)


def test_the_noise_floor_is_the_larger_of_the_sweeps_and_of_what_is_known_from_process_to_process() -> None:
    row = factory.measurement("softmax", "torch", 1024, median_us=30.0)
    assert row.rate is not None and row.rate.bound == "memory"

    def floor(*told: object) -> float | None:
        state = row.with_noise_floor(*told).outcome.state  # type: ignore[arg-type]
        return None if state is None else state.noise_floor

    assert floor(None) is None
    assert floor(0.002) == 0.002
    assert floor(0.002, {"memory": 0.004}) == pytest.approx(1.645 * 0.004)
    assert floor(None, {"memory": 0.004}) == pytest.approx(1.645 * 0.004)
    assert floor(0.01, {"memory": 0.004}) == 0.01
    assert floor(0.002, {"compute": 0.004}) == 0.002
    assert floor(0.002, {"launch": 0.004}) == 0.002


@pytest.mark.parametrize(
    ("size", "found"), [(256, "launch"), (1024, "memory")], ids=["a short problem", "a long one"]
)
def test_noise_is_known_by_the_shortest_time_that_the_device_allows(size: int, found: str) -> None:
    for us in (1.0, 30.0):
        row = factory.measurement("softmax", "torch", size, median_us=us)
        assert row.rate is not None
        assert noise_class(row.rate, us) == found, "whatever it takes"
    assert row.rate is not None
    unknown = row.rate.replace(bound=None, ceiling_fraction=None)
    assert noise_class(unknown, 30.0) == ""
