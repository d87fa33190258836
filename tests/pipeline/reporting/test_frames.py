"""Measurements as a table of data: the best is the best that can be trusted, and of its own problem."""

from datetime import timedelta

import pandas as pd
import pytest

from pipeline.reporting.frames import COLUMNS, against_baseline, best_configurations, best_providers, frame
from pipeline.reporting.headlines import headline, x_name
from pipeline.store.rows_that_count import comparable
from tests.factory import H100, H200, MEASURED_AT, measurement


def test_a_frame_has_its_columns_even_when_empty():
    assert list(frame([]).columns) == COLUMNS
    row = measurement(rows=3)
    (made,) = frame([row]).to_dict("records")
    assert list(made) == COLUMNS
    assert row.outcome.timing is not None
    assert made["median_us"] == row.outcome.timing.median_us
    assert (made["extent"], made["words"], made["x"]) == ("rows=3 columns=1024", "float32", 1024)


def test_a_problem_is_named_by_its_numbers_and_its_words():
    rows = [
        measurement("matmul", "torch", 8192, "bfloat16", m=16, workload="decode"),
        measurement("matmul", "torch", 4096, "float32", arithmetic="tf32", workload="square_tf32"),
        measurement("of_old", "torch", 256),
    ]
    found = frame(rows)[["extent", "words", "x", "headline"]]
    assert [tuple(line) for line in found.itertuples(index=False)] == [
        ("m=16 n=8192 k=8192", "bfloat16", 16, "gbps"),
        ("4096", "float32 tf32", 4096, "tflops"),
        ("n=256", "float32", 256, "gbps"),
    ]
    assert (x_name("matmul", "decode"), x_name("matmul", "square")) == ("m", "m")
    assert x_name("of_old", "sizes", rows[2].point) == "n" and headline("of_old", "sizes") == "gbps"


def test_a_timing_not_to_be_trusted_is_best_only_without_another():
    rows = [
        measurement(provider="cuda", block_size=512, num_warps=4, median_us=5.0, valid=False),
        measurement(provider="cuda", block_size=1024, num_warps=4, median_us=8.0),
        measurement(provider="cpp", median_us=1.0, valid=False),
    ]
    best = best_configurations(frame(rows))
    assert best.set_index("provider")["median_us"].to_dict() == {"cuda": 8.0, "cpp": 1.0}
    assert list(best_providers(best)["provider"]) == ["cuda"]


def test_times_of_two_versions_of_the_measuring_code_are_not_compared():
    def of_version(version, **values):
        row = measurement(**values)
        return row.replace(parts=row.parts.replace(measurement=version))

    rows = [
        of_version("2", provider="torch", size=256, median_us=10.0),
        of_version("2", provider="cuda", size=256, median_us=9.0),
        of_version("0", provider="cuda", size=256, median_us=8.0, block_size=64),
        of_version("0", provider="cpp", size=256, median_us=7.0),
        of_version("0", provider="cpp", size=512, median_us=6.0),
        of_version("10", provider="cpp", size=1024, median_us=6.0),
        of_version("2", provider="cuda", size=1024, median_us=5.0),
        of_version("edited 0123", provider="cuda", size=2048, median_us=6.0),
        of_version("10", provider="cpp", size=2048, median_us=5.0),
    ]
    best = best_configurations(frame(rows))
    found = {(row["x"], row["provider"]): row["median_us"] for row in best.to_dict("records")}
    assert found == {
        (256, "torch"): 10.0,
        (256, "cuda"): 9.0,
        (512, "cpp"): 6.0,
        (1024, "cpp"): 6.0,
        (2048, "cuda"): 6.0,
    }


def test_a_difference_within_the_noise_is_a_tie():
    times = {"torch": 10.0, "cuda": 9.9, "cpp": 9.0, "triton_row": 10.06}
    rows = [measurement(provider=provider, size=256, median_us=us) for provider, us in times.items()]

    def ties(floor: float | None) -> set[str]:
        noisy = [row.with_noise_floor(floor) for row in rows]
        found = against_baseline(best_configurations(frame(noisy)), {"softmax": "torch"})
        return set(found.loc[found["tied"], "provider"])

    assert ties(0.05) == {"cuda", "triton_row"}, "and the baseline is not compared with itself"
    assert ties(0.2) == {"cuda", "cpp", "triton_row"}
    assert ties(None) == set(), "the confidence interval is 0.4 %"
    assert ties(0.007) == {"triton_row"}


def test_problems_that_differ_in_one_number_meet_nobody_else():
    times = {
        ("torch", None): 40.0,
        ("cuda", None): 20.0,
        ("torch", 37): 6.0,
        ("cuda", 37): 2.0,
        ("cuda", 1): 1.0,
    }
    rows = [measurement(provider=provider, rows=n, median_us=us) for (provider, n), us in times.items()]
    rows += [measurement(provider="cuda", rows=37, block_size=512, num_warps=4, median_us=3.0)]
    best = against_baseline(best_configurations(frame(rows)), {"softmax": "torch"})
    found = {(row["provider"], row["extent"]): row for row in best.to_dict("records")}
    assert {place: row["median_us"] for place, row in found.items()} == {
        (provider, "1024" if n is None else f"rows={n} columns=1024"): us
        for (provider, n), us in times.items()
    }
    assert found["cuda", "1024"]["speedup"] == pytest.approx(2.0)
    assert found["cuda", "rows=37 columns=1024"]["speedup"] == pytest.approx(3.0)
    assert pd.isna(found["cuda", "rows=1 columns=1024"]["speedup"]), "torch was not timed there"
    assert list(best_providers(best)["extent"]) == ["rows=1 columns=1024", "rows=37 columns=1024", "1024"]
    assert set(best_providers(best)["provider"]) == {"cuda"}


def test_of_a_point_the_newest_row_counts_that_was_timed_as_usual():
    later = MEASURED_AT + timedelta(hours=1)
    old = measurement(median_us=9.0)
    new = measurement(median_us=8.0, settings="8" * 16, measured_at=later)
    hot = measurement(median_us=1.0, settings="9" * 16, measured_at=later, cache="hot")
    elsewhere = measurement(median_us=7.0, gpu=H100)
    assert comparable([new, old, hot, elsewhere]) == [new, elsewhere]
    timing = old.outcome.timing
    assert timing is not None
    other = timing.replace(timer="do_bench")
    assert not comparable([old.replace(outcome=old.outcome.replace(timing=other))])


@pytest.mark.parametrize(("median_us", "is_trusted"), [(4.5, False), (29.9, False), (4700.0, True)])
def test_a_short_time_by_events_is_not_trusted(median_us: float, is_trusted: bool):
    """Events add about 3 us. A kernel of 1.5 us that a graph timed must not be three times as fast."""
    row = measurement(median_us=median_us)
    timing = row.outcome.timing
    assert timing is not None
    for timer in ("event", "graph"):
        (found,) = comparable([row.replace(outcome=row.outcome.replace(timing=timing.replace(timer=timer)))])
        assert found.outcome.state is not None
        assert found.outcome.state.valid is (is_trusted or timer == "graph")


def test_a_problem_has_one_rate_whatever_workload_its_row_was_measured_as_one_of():
    rows = [
        measurement("matmul", "torch", 8192, "bfloat16", m=16, workload=workload, gpu=gpu)
        for gpu, workload in ((H100, "decode"), (H200, "square"))
    ]
    assert list(frame(rows)["headline"]) == ["gbps", "gbps"]
    pinned = measurement("matmul", "torch", 8192, "bfloat16", m=17, workload="decode")
    assert headline("matmul", "decode", pinned.point.problem) == "gbps", "no workload lists it: its row's"
    square = measurement("matmul", "torch", 8192, "bfloat16", workload="decode")
    assert headline("matmul", "decode", square.point.problem) == "tflops"
