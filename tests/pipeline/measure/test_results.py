"""Results are read the same on every host, and the best is the best that can be trusted."""

import json

import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.measure.ledger import encode
from pipeline.measure.results import (
    COLUMNS,
    against_baseline,
    best_configurations,
    best_providers,
    ceilings_path,
    environment_path,
    frame,
    label,
    ledger_path,
    load,
)
from tests.factory import CPU, H100, H200, ceilings, environment, grid, measurement, write_results


def quiet(sentence: str) -> None:
    raise AssertionError(f"unexpected warning: {sentence}")


def test_everything_that_was_written_is_read(tmp_path):
    rows = grid(kernels=("gelu", "softmax"), gpus=(CPU, H200, H100))
    found = load(write_results(tmp_path, rows), quiet)
    assert sorted(row.key for row in found.measurements) == sorted(row.key for row in rows)
    assert found.kernels == ["gelu", "softmax"]
    assert found.gpus == [H100, H200, CPU], "processors come after GPUs"
    assert found.environments[H200] == environment(H200)
    assert found.ceilings[CPU] == ceilings(CPU)


def test_an_empty_folder_has_no_results(tmp_path):
    found = load(tmp_path, quiet)
    assert (found.measurements, found.kernels, found.gpus) == ((), [], [])


def test_of_a_point_that_was_measured_twice_the_newest_line_counts(tmp_path):
    path = ledger_path(tmp_path, "softmax", H200)
    path.parent.mkdir(parents=True)
    old, new = measurement(median_us=1.0), measurement(median_us=9.0)
    path.write_bytes(encode(old) + encode(new))
    assert load(tmp_path, quiet).measurements == (new,)


def test_a_torn_line_is_skipped_with_a_sentence(tmp_path):
    write_results(tmp_path, grid())
    path = ledger_path(tmp_path, "softmax", H200)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:100] + b"\n" + b"".join(lines[3:]))
    sentences: list[str] = []
    assert len(load(tmp_path, sentences.append).measurements) == len(lines) - 1
    assert len(sentences) == 1 and f"{path}:3 " in sentences[0]


@pytest.mark.parametrize("path_of", [environment_path, ceilings_path])
def test_a_broken_description_of_a_machine_is_a_sentence(tmp_path, path_of):
    write_results(tmp_path, grid())
    path_of(tmp_path, H200).write_text("{}")
    with pytest.raises(UserError, match=r"not readable as .*delete it and run `dvc repro`"):
        load(tmp_path, quiet)


def test_a_frame_has_a_ledger_rows_columns_even_when_empty():
    row = measurement(rows=3).row()
    assert list(row) == COLUMNS
    assert list(frame([]).columns) == [*COLUMNS, "extent"]
    assert frame([measurement(rows=3)]).iloc[0]["samples_us"] == row["samples_us"]


def test_nothing_in_gives_nothing_out():
    best = against_baseline(best_configurations(frame([])), {})
    assert best_providers(best).empty


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({}, "triton_online"),
        ({"num_warps": 8}, "triton_online 8w"),
        ({"block_size": 1024, "num_warps": 8}, "triton_online 1024x8w"),
        ({"block_size": 1024, "num_warps": 8, "num_stages": 3}, "triton_online 1024x8wx3s"),
    ],
)
def test_a_configuration_is_written_short(axes, expected):
    table = frame([measurement(provider="triton_online", **axes), measurement(provider="torch")])
    assert [label(row) for row in table.to_dict("records")] == [expected, "torch"]


def test_the_best_configuration_is_the_fastest_of_its_provider():
    rows = grid(gpus=(H100, H200), providers=("torch", "cuda"), dtypes=("float32", "bfloat16"))
    best = best_configurations(frame([*rows, measurement(provider="cpp", status="incorrect")]))
    fastest: dict[tuple, float] = {}
    for row in map(json.loads, map(encode, rows)):
        group = (row["gpu"], row["dtype"], row["size"], row["provider"])
        fastest[group] = min(fastest.get(group, 1e9), row["median_us"])
    keys = ["gpu", "dtype", "size", "provider"]
    assert best.set_index(keys)["median_us"].to_dict() == fastest


def test_a_timing_not_to_be_trusted_is_best_only_without_another():
    rows = [
        measurement(provider="cuda", block_size=512, num_warps=4, median_us=5.0, valid=False),
        measurement(provider="cuda", block_size=1024, num_warps=4, median_us=8.0),
        measurement(provider="cpp", median_us=1.0, valid=False),
    ]
    best = best_configurations(frame(rows))
    assert best.set_index("provider")["median_us"].to_dict() == {"cuda": 8.0, "cpp": 1.0}
    assert list(best_providers(best)["provider"]) == ["cuda"]


def test_speedup_is_against_the_same_gpu_dtype_and_size():
    rows = [
        measurement(provider="torch", size=256, median_us=10.0),
        measurement(provider="cuda", size=256, median_us=4.0),
        measurement(provider="cuda", size=512, median_us=5.0),
        measurement(provider="torch", size=512, median_us=50.0, gpu=H100),
        measurement(provider="torch", size=512, median_us=60.0, dtype="bfloat16"),
    ]
    found = against_baseline(best_configurations(frame(rows)), {"softmax": "torch"})
    cuda = found[found["provider"] == "cuda"].set_index("size")["speedup"]
    assert cuda[256] == pytest.approx(2.5)
    assert pd.isna(cuda[512]), "torch was not timed there"
    assert found.loc[found["provider"] == "torch", "speedup"].eq(1).all()


def test_a_difference_within_the_noise_is_a_tie():
    times = {"torch": 10.0, "cuda": 9.9, "cpp": 9.0, "triton_row": 10.06}
    rows = [measurement(provider=provider, size=256, median_us=us) for provider, us in times.items()]

    def ties(floor: float | None) -> set[str]:
        noisy = [row.with_noise_floor(floor) for row in rows]
        found = against_baseline(best_configurations(frame(noisy)), {"softmax": "torch"})
        return set(found.loc[found["tied"], "provider"])

    assert ties(0.05) == {"cuda", "triton_row"}, "and the baseline is no rival of itself"
    assert ties(0.2) == {"cuda", "cpp", "triton_row"}
    assert ties(None) == set(), "the confidence interval is 0.4 %"
    assert ties(0.007) == {"triton_row"}


def test_points_with_rows_of_their_own_meet_nobody_else():
    """Missing rows are easily lost: pandas leaves them out of groups and finds no match for them."""
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
        (provider, "1024" if n is None else f"{n}x1024"): us for (provider, n), us in times.items()
    }
    assert found["cuda", "1024"]["speedup"] == pytest.approx(2.0)
    assert found["cuda", "37x1024"]["speedup"] == pytest.approx(3.0)
    assert pd.isna(found["cuda", "1x1024"]["speedup"]), "torch was not timed there"
    assert list(best_providers(best)["extent"]) == ["1024", "1x1024", "37x1024"], "as in a ledger"
    assert set(best_providers(best)["provider"]) == {"cuda"}
