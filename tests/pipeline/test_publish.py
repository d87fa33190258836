"""A publish stores each ledger once and completely, whatever the store held before."""

import re
import resource
import socket
import sqlite3
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from kernel_pipeline.declared import Value
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from pipeline.command.options import PublishConfig, TrackingConfig
from pipeline.publish import publish
from pipeline.store import results as results_module
from pipeline.tracking import connection, ledgers, store
from pipeline.tracking.publisher import Published, how_to_open
from pipeline.tracking.store import opened
from tests.factory import (
    CPU,
    H100,
    H200,
    MEASURED_AT,
    ceilings,
    environment,
    final,
    grid,
    measurement,
    moved,
    write_finals,
    write_results,
)
from tests.mlflow_store import content, log, run_ids, server, shown, start

ROWS = grid(gpus=(H200, H100))
NAMES = {
    f"{name} @ {gpu}"
    for gpu in (H200, H100)
    for name in (
        "softmax",
        "torch float32",
        "triton_online float32 512x4w",
        "triton_online float32 512x8w",
        "triton_online float32 1024x4w",
        "triton_online float32 1024x8w",
    )
}
BESTS = {f"{name} float32 best @ {gpu}" for gpu in (H200, H100) for name in ("torch", "triton_online")}


@pytest.fixture(autouse=True)
def no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_results(tmp_path / "results", ROWS)


def uri(database: Path) -> str:
    return f"sqlite:///{database}"


@pytest.fixture
def no_database(tmp_path: Path) -> Path:
    """Return the path of a store that does not exist."""
    return tmp_path / "store" / "mlflow.db"


def changed(rows: list[Measurement], index: int) -> list[Measurement]:
    """Return the rows with one of them measured again a day later."""
    row = rows[index]
    again = measurement(
        row.point.kernel,
        row.point.provider,
        **row.point.problem,
        **row.point.parameters,
        gpu=row.origin.gpu,
        median_us=777.0,
        measured_at=row.origin.measured_at + timedelta(days=1),
    )
    assert again.point == row.point
    return [*rows[:index], again, *rows[index + 1 :]]


def number(row: Measurement, name: str) -> float:
    """Return a field of the row's timing or rate."""
    return float(getattr(row.outcome.timing, name, None) or getattr(row.rate, name))


def test_a_ledger_becomes_a_parent_and_a_child_for_each_configuration(
    results: Path, database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log(results, uri(database))
    runs = shown(database)
    assert set(runs) == NAMES

    child = runs[f"triton_online float32 1024x8w @ {H200}"]
    wide = Values({"block_size": 1024, "num_warps": 8})
    rows = [r for r in ROWS if r.origin.gpu == H200 and r.point.parameters == wide]
    times = [1000 * int(row.origin.measured_at.timestamp()) for row in rows]
    assert child["parent"] == f"softmax @ {H200}"
    assert child["info"] == ["FINISHED", min(times), max(times)]
    assert child["params"] == {
        "kernel": "softmax",
        "gpu": H200,
        "workload": "columns",
        "provider": "triton_online",
        "rows": "4096",
        "dtype": "float32",
        "block_size": "1024",
        "num_warps": "8",
        "timer": "graph",
        "cache": "cold",
    }
    tags = child["tags"]
    assert (tags["kind"], tags["gpu"], tags["status"], tags["dirty"]) == ("config", H200, "ok", "false")
    assert (tags["workload"], tags["x"], tags["headline"]) == ("columns", "columns", "gbps")
    assert tags["commit"] == tags["mlflow.source.git.commit"] == rows[0].origin.commit
    assert tags["run"] == rows[0].origin.run
    for name in ("median_us", "p20_us", "p80_us", "min_us", "rel_ci", "gbps", "tflops", "ceiling_fraction"):
        expected = [
            (name, row.point.problem["columns"], number(row, name), at, 0)
            for row, at in zip(rows, times, strict=True)
        ]
        assert [metric for metric in child["metrics"] if metric[0] == name] == sorted(expected)
    assert {"max_abs_err", "max_rel_err", "sm_clock_mhz", "power_w"} < {
        metric[0] for metric in child["metrics"]
    }

    parent = runs[f"softmax @ {H200}"]
    assert parent["params"]["driver"] == "580.82.07" and parent["params"]["gpu"] == H200
    assert parent["tags"]["environment"] == environment(H200).digest
    assert float(parent["params"]["ceiling_copy_gbps"]) == ceilings(H200).copy_gbps
    latest = {key: value for key, _, value, _, _ in parent["metrics"]}
    assert (latest["points"], latest["points_ok"]) == (15, 15)
    best = {step: value for key, step, value, *_ in parent["metrics"] if key == "best_gbps_float32"}
    for size, value in best.items():
        at_size = [r.rate for r in ROWS if r.origin.gpu == H200 and r.point.problem["columns"] == size]
        assert value == max(rate.gbps for rate in at_size if rate)

    artifacts = (
        database.parent / "mlartifacts" / "softmax" / run_ids(database)[f"softmax @ {H200}"] / "artifacts"
    )
    for path in (f"timings/softmax/{H200}.jsonl", f"timings/softmax/{H200}.yaml", f"environment/{H200}.json"):
        assert (artifacts / "results" / path).read_bytes() == (results / path).read_bytes()

    out, err = capfd.readouterr()
    assert err == "" and "INFO" not in out and "🏃" not in out
    assert "/#/experiments/1/runs?" in out.splitlines()[-1]


def test_what_has_no_time_is_shown_without_a_number(tmp_path: Path, database: Path) -> None:
    rows = [
        measurement(provider="cuda", status="incorrect", error="differs by 3", size=256),
        measurement(provider="cuda", status="timeout", error="took 120 s", size=512),
        measurement(provider="cpp", status="compile_error", error="no compiler"),
        measurement(provider="triton_row", status="verified"),
        measurement(provider="torch", size=256, valid=False),
        measurement(provider="torch", size=512),
        measurement(provider="torch", size=1024, status="out_of_memory", error="no memory"),
    ]
    log(write_results(tmp_path / "results", rows), uri(database))
    runs = {name.split()[0]: run for name, run in shown(database).items()}
    statuses = {name: (run["info"][0], run["tags"]["status"]) for name, run in runs.items()}
    assert statuses == {
        "softmax": ("FINISHED", "mixed"),
        "cuda": ("FAILED", "mixed"),
        "cpp": ("FAILED", "compile_error"),
        "triton_row": ("FINISHED", "verified"),
        "torch": ("FINISHED", "mixed"),
    }
    assert runs["cuda"]["metrics"] == runs["cpp"]["metrics"] == []
    assert {metric[0] for metric in runs["triton_row"]["metrics"]} == {"max_abs_err", "max_rel_err"}
    assert {metric[1] for metric in runs["torch"]["metrics"] if "_at_" not in metric[0]} == {256, 512}
    assert runs["cuda"]["tags"]["notes"] == "at 256: incorrect: differs by 3; at 512: timeout: took 120 s"
    assert "at 256: not to be trusted: the clock moved" in runs["torch"]["tags"]["notes"]
    assert runs["torch"]["tags"]["points"] == "2 ok, 1 out_of_memory"


def test_a_changed_row_replaces_its_run_and_no_other(results: Path, database: Path) -> None:
    from mlflow import MlflowClient

    log(results, uri(database))
    before, ids = shown(database), run_ids(database)
    client = MlflowClient(uri(database))
    altered = f"triton_online float32 512x4w @ {H200}"
    client.set_tag(ids[altered], "mlflow.note.content", "look at this one")
    client.set_tag(ids[altered], "reviewed", "yes")
    foreign = client.create_run("1", run_name="somebody else's", tags={"gpu": H200})
    narrow = Values({"block_size": 512, "num_warps": 4})
    index = next(i for i, r in enumerate(ROWS) if r.point.parameters == narrow)
    log(write_results(results, changed(ROWS, index)), uri(database))

    after, new_ids = shown(database), run_ids(database)
    assert new_ids.pop("somebody else's") == foreign.info.run_id and after.pop("somebody else's")
    assert set(after) == NAMES
    replaced = {name for name in NAMES if ids[name] != new_ids[name]}
    assert replaced == {altered, f"softmax @ {H200}"}
    assert all(after[name] == before[name] for name in NAMES - replaced)
    medians = {step: value for key, step, value, *_ in after[altered]["metrics"] if key == "median_us"}
    assert medians[256] == 777.0 and len(medians) == 3
    assert after[altered]["tags"]["mlflow.note.content"] == "look at this one"
    assert after[altered]["tags"]["reviewed"] == "yes"


def test_what_the_ledger_no_longer_holds_goes_and_other_ledgers_stay(results: Path, database: Path) -> None:
    log(results, uri(database))
    write_results(results, [r for r in ROWS if r.point.provider == "torch" or r.origin.gpu == H100])
    log(results, uri(database))
    gone = {name for name in NAMES if "triton_online" in name and H200 in name}
    assert set(shown(database)) == NAMES - gone
    log(write_results(results, ROWS), uri(database))
    assert set(shown(database)) == NAMES


def test_publishing_again_changes_nothing_removes_duplicates_and_brings_back_what_was_deleted(
    results: Path, database: Path
) -> None:
    from mlflow import MlflowClient

    log(results, uri(database))
    before, stored = shown(database), content(database)
    files = {path: path.stat().st_mtime_ns for path in database.parent.rglob("mlartifacts/**/*.json*")}
    log(results, uri(database))
    assert content(database) == stored
    assert files and files == {path: path.stat().st_mtime_ns for path in files}

    client = MlflowClient(uri(database))
    for run_id in run_ids(database).values():
        client.create_run("1", tags=dict(client.get_run(run_id).data.tags))
    log(results, uri(database))
    after = shown(database)
    assert set(after) == NAMES
    for name in NAMES:
        assert after[name]["metrics"] == before[name]["metrics"]
        assert after[name]["info"][0] == "FINISHED"
        assert after[name].get("parent") == before[name].get("parent")

    client.delete_experiment("1")
    log(results, uri(database))
    assert shown(database) == after


def test_more_metrics_than_mlflow_takes_at_once(tmp_path: Path, database: Path) -> None:
    rows = [measurement(size=size) for size in range(1, 121)]
    log(write_results(tmp_path / "results", rows), uri(database))
    metrics = shown(database)[f"torch float32 @ {H200}"]["metrics"]
    assert len(metrics) > 1000
    assert {step for key, step, *_ in metrics if key == "gbps"} == set(range(1, 121))


def test_reports_are_uploaded_to_their_kernel_and_only_when_they_change(
    tmp_path: Path, database: Path
) -> None:
    results = write_results(tmp_path / "results", grid(kernels=("softmax", "gelu"), providers=("torch",)))
    reports = tmp_path / "reports"
    for path in (
        "index.html",
        "softmax.html",
        "gelu.html",
        "plots/softmax-float32.svg",
        "plots/gelu-float32.svg",
    ):
        (reports / path).parent.mkdir(parents=True, exist_ok=True)
        (reports / path).write_text(path)
    log(results, uri(database), reports=reports)
    ids = run_ids(database)
    artifacts = (
        database.parent / "mlartifacts" / "softmax" / ids[f"softmax @ {H200}"] / "artifacts" / "reports"
    )
    found = {str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file()}
    assert found == {"index.html", "softmax.html", "plots/softmax-float32.svg"}
    (reports / "softmax.html").write_text("new")
    log(results, uri(database), reports=reports)
    assert run_ids(database) == ids
    assert (artifacts / "softmax.html").read_text() == "new"


def test_a_report_is_added_to_what_was_published_before_it_was_there(
    results: Path, tmp_path: Path, database: Path
) -> None:
    """``make repro`` publishes while the report is being made. A later publish adds the report without
    creating a run twice."""
    listing = tmp_path / "artifacts/codegen/softmax" / H200 / "torch.txt"
    page = tmp_path / "reports/softmax.html"
    for path in (listing, page):
        path.parent.mkdir(parents=True)
        path.write_text("as it is")
    log(results, uri(database), artifacts=tmp_path / "artifacts")
    before, ids = content(database), run_ids(database)
    log(results, uri(database), artifacts=tmp_path / "artifacts", reports=page.parent)
    after = content(database)
    differ = {name for name in before if before[name] != after[name]}
    assert differ == {"tags"} and len(after["tags"]) == len(before["tags"])
    (there,) = database.parent.rglob(f"*/{ids[f'softmax @ {H200}']}/artifacts/reports/softmax.html")
    assert there.read_text() == "as it is"


def test_only_the_kernel_asked_for(tmp_path: Path, database: Path) -> None:
    results = write_results(tmp_path / "results", grid(kernels=("softmax", "gelu"), providers=("torch",)))
    log(results, uri(database), kernel="gelu")
    assert set(shown(database)) == {f"gelu @ {H200}", f"torch float32 @ {H200}"}
    log(results, uri(database), kernel="kernels/softmax")
    assert f"softmax @ {H200}" in shown(database, "softmax")
    with pytest.raises(UserError, match=r"holds no measurements of square, only of gelu, softmax\."):
        log(results, uri(database), kernel="square")


def steps(run: dict[str, Any], name: str = "median_us") -> list[int]:
    """Return the steps at which a metric has values."""
    return [step for key, step, *_ in run["metrics"] if key == name]


def test_a_line_runs_along_the_workloads_x_and_what_stays_the_same_is_a_param(
    tmp_path: Path, database: Path
) -> None:
    def matmul(size: int, workload: str, **named: int) -> Measurement:
        tiles = {"block_m": 64, "num_warps": 4}
        return measurement("matmul", "triton_tiled", size, "bfloat16", workload=workload, **tiles, **named)

    rows = [
        *(matmul(size, "square") for size in (512, 1024)),
        *(matmul(8192, "decode", m=m) for m in (1, 16, 64)),
        # Pinned by hand, this point counts to workload square, but does not lie on the line of its square
        # problems.
        matmul(512, "square", k=4096),
        measurement("matmul", "torch", 512, "float32", arithmetic="tf32", workload="square_tf32"),
    ]
    log(write_results(tmp_path / "results", rows), uri(database))
    runs = shown(database, "matmul")
    tiles = "64x128x64x8gx4wx3s"
    assert set(runs) == {
        f"{name} @ {H200}"
        for name in (
            "matmul",
            "torch float32 tf32",
            f"triton_tiled bfloat16 {tiles}",
            f"triton_tiled bfloat16 {tiles} n=8192 k=8192",
            f"triton_tiled bfloat16 {tiles} n=512 k=4096",
        )
    }
    square = runs[f"triton_tiled bfloat16 {tiles} @ {H200}"]
    assert steps(square) == [512, 1024]
    assert square["params"] == {
        **{"kernel": "matmul", "gpu": H200, "workload": "square", "provider": "triton_tiled"},
        **{"dtype": "bfloat16", "arithmetic": "ieee", "timer": "graph", "cache": "cold"},
        **{"block_m": "64", "block_n": "128", "block_k": "64", "group_m": "8"},
        **{"num_warps": "4", "num_stages": "3"},
    }
    assert (square["tags"]["x"], square["tags"]["headline"]) == ("m", "tflops")
    decode = runs[f"triton_tiled bfloat16 {tiles} n=8192 k=8192 @ {H200}"]
    assert steps(decode) == steps(decode, "gbps") == [1, 16, 64]
    assert decode["params"] == square["params"] | {"workload": "decode", "n": "8192", "k": "8192"}
    assert (decode["tags"]["workload"], decode["tags"]["headline"]) == ("decode", "gbps")
    pinned = runs[f"triton_tiled bfloat16 {tiles} n=512 k=4096 @ {H200}"]
    assert (steps(pinned), pinned["params"]["m"], pinned["params"]["k"]) == ([512], "512", "4096")
    # The kernel's run holds the best of its own line, in the unit by which people compare.
    parent = runs[f"matmul @ {H200}"]
    assert steps(parent, "best_tflops_bfloat16") == [512, 1024]
    assert steps(parent, "best_tflops_float32_tf32") == [512]
    best = max(row.rate.tflops for row in (rows[0], rows[6]) if row.rate)
    assert ("tflops", 512, best) in [metric[:3] for metric in parent["metrics"]]
    assert parent["tags"]["workload"] == "decode, square, square_tf32"


def test_two_workloads_share_a_line_or_have_another_x(tmp_path: Path, database: Path) -> None:
    launch = {"provider": "cuda", "block_size": 512, "num_warps": 4}
    rows = [
        measurement(size=4096, workload="columns", **launch),
        measurement(size=256, workload="short_rows", **launch),
        *(measurement(size=12671, rows=rows, workload="few_rows", **launch) for rows in (1, 37, 1823)),
        measurement(size=781, rows=37, workload="few_rows", **launch),
    ]
    log(write_results(tmp_path / "results", rows), uri(database))
    runs = shown(database)
    line = runs[f"cuda float32 512x4w @ {H200}"]
    assert (steps(line), line["params"]["rows"]) == ([256, 4096], "4096")
    assert line["params"]["workload"] == line["tags"]["workload"] == "columns, short_rows"
    few = runs[f"cuda float32 512x4w columns=12671 @ {H200}"]
    assert (steps(few), few["params"]["columns"]) == ([1, 37, 1823], "12671")
    assert "rows" not in few["params"] and few["tags"]["x"] == "rows"
    assert steps(runs[f"cuda float32 512x4w columns=781 @ {H200}"]) == [37]
    assert len(runs) == 4
    parent = runs[f"softmax @ {H200}"]
    assert steps(parent, "gbps") == [256, 4096], "the kernel's own line"
    before = content(database)
    log(tmp_path / "results", uri(database))
    assert content(database) == before


def of_problem(problem: dict[str, Value], **parameters: Value) -> Measurement:
    """Return a row of this problem for a kernel that the repository does not have."""
    row = measurement("convolution", "own", workload="causal", **parameters)
    return moved(row, row.point.replace(problem=Values(problem)))


def test_a_kernel_that_is_gone_and_any_type_of_parameter(tmp_path: Path, database: Path) -> None:
    shape: dict[str, Value] = {"batch": 4, "dtype": "bfloat16", "causal": True, "cache": "paged"}
    rows = [
        of_problem({"sequence": sequence, **shape, "causal": causal}, split=split, strategy="online")
        for sequence in (512, 1024, 2048)
        for causal in (True, False)
        for split in (True, False)
    ]
    log(write_results(tmp_path / "results", rows), uri(database), kernel="convolution")
    runs = shown(database, "convolution")
    assert set(runs) == {
        f"convolution @ {H200}",
        *(
            f"own bfloat16{causal} paged split={split},strategy=online batch=4 @ {H200}"
            for causal in (" causal", "")
            for split in ("true", "false")
        ),
    }
    run = runs[f"own bfloat16 causal paged split=true,strategy=online batch=4 @ {H200}"]
    assert run["params"] == {
        **{"kernel": "convolution", "gpu": H200, "workload": "causal", "provider": "own"},
        **{"batch": "4", "dtype": "bfloat16", "causal": "true", "problem.cache": "paged"},
        **{"split": "true", "strategy": "online", "timer": "graph", "cache": "cold"},
    }
    assert (steps(run), run["tags"]["x"]) == ([512, 1024, 2048], "sequence"), "what varies most"
    parent = runs[f"convolution @ {H200}"]
    assert steps(parent, "gbps") == steps(parent, "best_gbps_bfloat16_causal_paged") == [512, 1024, 2048]


def test_numbers_that_are_the_same_are_one_and_problems_without_any_are_shown(tmp_path: Path) -> None:
    square = [of_problem({"m": size, "n": size}) for size in (64, 128)]
    (sweep,) = ledgers.read(write_results(tmp_path / "square", square))
    _, child = sweep.children
    assert {value.step for value in child.values if "_at_" not in value.key} == {64, 128}
    rates = {value.key for value in child.values if value.key.startswith("gbps_at_")}
    assert rates == {"gbps_at_m_64", "gbps_at_m_128"}
    shares = {value.key for value in child.values if "_at_" in value.key} - rates
    assert shares == {"ceiling_fraction_at_m_64", "ceiling_fraction_at_m_128"}
    (sweep,) = ledgers.read(write_results(tmp_path / "words", [of_problem({"dtype": "float32"})]))
    _, child = sweep.children
    assert ({value.step for value in child.values}, child.name) == ({0}, f"own float32 @ {H200}")


def test_a_point_timed_by_several_settings_is_shown_once_and_hot_beside_cold(
    tmp_path: Path, database: Path
) -> None:
    later = MEASURED_AT + timedelta(hours=1)
    rows = [
        measurement(size=256, median_us=5.0, settings="a" * 16, measured_at=later),
        measurement(size=256, median_us=6.0, settings="b" * 16),
        measurement(size=256, median_us=2.0, settings="c" * 16, cache="hot"),
        measurement(size=512, status="timeout", settings="c" * 16),
    ]
    log(write_results(tmp_path / "results", rows), uri(database))
    runs = shown(database)
    assert set(runs) == {f"{name} @ {H200}" for name in ("softmax", "torch float32", "torch float32 hot")}
    cold, hot = (runs[f"torch float32{words} @ {H200}"] for words in ("", " hot"))
    assert [metric[:3] for metric in cold["metrics"] if metric[0] == "median_us"] == [("median_us", 256, 5.0)]
    assert [metric[:3] for metric in hot["metrics"] if metric[0] == "median_us"] == [("median_us", 256, 2.0)]
    assert hot["tags"]["points"] == "1 ok, 1 timeout"
    best = [metric[2] for metric in runs[f"softmax @ {H200}"]["metrics"] if metric[0] == "gbps"]
    assert best == [rows[0].rate.gbps if rows[0].rate else None]


def test_the_best_is_one_to_be_trusted_where_there_is_any(tmp_path: Path) -> None:
    rows = [
        measurement(size=256, median_us=9.0),
        measurement(provider="manual", size=256, median_us=1.0, valid=False),
        measurement(size=512, median_us=7.0, valid=False),
    ]
    (sweep,) = ledgers.read(write_results(tmp_path, rows))
    best = {value.step: value.value for value in sweep.parent.values if value.key == "gbps"}
    assert best == {row.point.problem["columns"]: row.rate.gbps for row in (rows[0], rows[2]) if row.rate}


def test_rates_at_equal_problems_have_the_same_name_and_others_another(tmp_path: Path) -> None:
    rows = [
        measurement(size=4096),
        measurement(size=262144),
        measurement(size=4096, rows=1024),
        measurement(size=781, rows=37, workload="few_rows"),
        measurement(size=4096, gpu=CPU),
    ]
    here, there = ledgers.read(write_results(tmp_path, rows))
    (of_cpu,) = (run for run in here.children if run.tags["kind"] == "config")
    of_line = {run.tags["line"]: run for run in there.children if run.tags["kind"] == "config"}
    assert set(of_line) == {"columns", "columns rows=1024", "rows columns=781"}

    def at(line: str) -> dict[str, float]:
        return {value.key: value.value for value in of_line[line].values if value.key.startswith("gbps_at_")}

    rates = [row.rate.gbps for row in rows if row.rate]
    assert at("columns") == {"gbps_at_4096": rates[0], "gbps_at_262144": rates[1]}
    assert at("columns rows=1024") == {"gbps_at_4096_rows_1024": rates[2]}
    assert at("rows columns=781") == {"gbps_at_rows_37_columns_781": rates[3]}
    assert "gbps_at_4096" in {value.key for value in of_cpu.values}
    summary = {value.key: value.value for value in there.parent.values}
    assert summary["best_gbps_float32_at_4096"] == rates[0]


def test_the_best_of_each_provider_is_a_run_that_says_which_configuration(tmp_path: Path) -> None:
    launch = {"provider": "cuda", "num_warps": 4}
    rows = [
        measurement(size=256, median_us=3.0, block_size=512, **launch),
        measurement(size=256, median_us=2.0, block_size=1024, **launch),
        measurement(size=256, median_us=1.0, block_size=2048, valid=False, **launch),
        measurement(size=512, median_us=4.0, block_size=512, **launch),
        measurement(size=512, median_us=5.0, block_size=1024, **launch),
        measurement(size=512, median_us=9.0, dtype="bfloat16"),
    ]
    (sweep,) = ledgers.read(write_results(tmp_path, rows))
    found = {run.name: run for run in sweep.children if run.tags["kind"] == "best"}
    assert set(found) == {f"cuda float32 best @ {H200}", f"torch bfloat16 best @ {H200}"}
    best = found[f"cuda float32 best @ {H200}"]
    times = {value.step: value.value for value in best.values if value.key == "median_us"}
    assert times == {256: 2.0, 512: 4.0}, "the fastest that is to be trusted"
    assert best.tags["configurations"] == "256: 1024x4w, 512: 512x4w"
    assert (best.params["provider"], best.params["dtype"]) == ("cuda", "float32")
    assert "block_size" not in best.params


def test_what_stands_for_many_points_describes_them(tmp_path: Path) -> None:
    rows = [
        measurement(size=4096, median_us=30.0),
        measurement(size=4096, median_us=20.0, provider="cuda", block_size=1024, num_warps=8),
        measurement(size=4096, median_us=25.0, provider="cuda", block_size=512, num_warps=8),
        measurement(size=4096, provider="triton_row", status="timeout", error="took 120 s"),
    ]
    folder = write_results(tmp_path / "results", rows)
    (without,) = ledgers.read(folder)
    note = without.parent.tags["mlflow.note.content"]
    assert "4 points, 3 ok, 1 timeout" in note
    first, second = (line for line in note.splitlines() if line.startswith("| 4096 "))
    assert "| cuda 1024x8w | 20.0 |" in first and first.endswith("| 1.50 |")
    assert "| torch | 30.0 |" in second and second.endswith("| 1.00 |")
    assert "`profile`, `counters` and `codegen` make them" in note, "how a clone gets them"

    trace = tmp_path / "artifacts" / "profile" / "softmax" / H200 / "cuda.json.gz"
    trace.parent.mkdir(parents=True)
    trace.write_text("{}")
    (beside,) = ledgers.read(folder, artifacts=tmp_path / "artifacts")
    assert "`profile`" not in beside.parent.tags["mlflow.note.content"]


def test_experiments_are_described_and_a_persons_words_stay(results: Path, database: Path) -> None:
    from mlflow import MlflowClient

    log(results, uri(database))
    client = MlflowClient(uri(database))
    names = {one.experiment_id: one.name for one in client.search_experiments()}
    assert names == {"1": "softmax"}, "no empty experiment beside ours"
    tags = dict(client.get_experiment("1").tags)
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    described = tags["mlflow.note.content"]
    assert described.startswith("Softmax over the rows of a matrix") and "gbps_at_4096" in described
    searches = re.findall(r"^- `(.+)`: ", described, re.MULTILINE)
    assert len(searches) == 3
    for search in searches:
        client.search_runs(["1"], search)

    parent = run_ids(database)[f"softmax @ {H200}"]
    client.set_tag(parent, "mlflow.note.content", "mine")
    client.set_experiment_tag("1", "mlflow.note.content", "ours")
    log(write_results(results, changed(ROWS, 0)), uri(database))
    assert client.get_experiment("1").tags["mlflow.note.content"] == "ours"
    after = run_ids(database)
    replaced = {gpu: after[f"softmax @ {gpu}"] for gpu in (H200, H100)}
    assert replaced[H200] != parent
    assert client.get_run(replaced[H200]).data.tags["mlflow.note.content"] == "mine"
    assert "points" in client.get_run(replaced[H100]).data.tags["mlflow.note.content"]


def test_a_point_that_had_finals_shows_them_beside_its_sweep(tmp_path: Path, database: Path) -> None:
    torch = measurement("softmax", "torch", 1024, median_us=30.0)
    cuda = measurement("softmax", "cuda", 1024, median_us=14.0)
    folder = write_results(tmp_path / "results", [torch, cuda])
    write_finals(folder, [final(cuda, 16.0), final(torch, 32.0, (cuda, 16.0, "slower"))])
    log(folder, uri(database))
    found = {}
    for run in shown(database).values():
        metrics = {name: value for name, _, value, *_ in run["metrics"] if name.startswith("final_")}
        if metrics:
            found[run["params"]["provider"]] = metrics
    assert found == {"torch": {"final_us": 32.0, "final_over_ours": 2.0}, "cuda": {"final_us": 16.0}}


def test_what_a_cpu_gave_lies_with_this_hosts_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "repository"
    monkeypatch.setattr(results_module, "ROOT", root)
    monkeypatch.setattr(results_module, "LOCAL", root / "local")
    tracked = write_results(root / "results", [measurement()])
    write_results(root / "local" / "results", [measurement(gpu=CPU)])
    for folder in (root / "reports", root / "local" / "reports"):
        folder.mkdir()
        (folder / "report.md").write_text(str(folder))
    both = list(ledgers.read(tracked, reports=root / "reports"))
    assert [sweep.parent.name for sweep in both] == [f"softmax @ {CPU}", f"softmax @ {H200}"]
    for sweep, place in zip(both, (root / "local" / "results", tracked), strict=True):
        gpu = sweep.parent.params["gpu"]
        path = f"timings/softmax/{gpu}.jsonl"
        assert sweep.files[f"results/{path}"] == place / path
        assert sweep.files["reports/report.md"] == root / "local" / "reports" / "report.md"
    (own,) = ledgers.read(root / "local" / "results")
    assert own.parent == both[0].parent


def test_a_password_of_the_command_line_is_left_out_of_what_to_run(results: Path) -> None:
    with pytest.raises(UserError) as told:
        log(results, "http://user:secret@127.0.0.1:9")
    assert "secret" not in str(told.value) and str(told.value).endswith("tracking=server")
    assert "set MLFLOW_TRACKING_URI to it and run: python -m pipeline.publish" in str(told.value)


def test_a_ledger_of_several_commits_names_the_newest(tmp_path: Path) -> None:
    later = MEASURED_AT + timedelta(hours=1)
    rows = [
        measurement(size=256, commit="a" * 40),
        measurement(commit="b" * 40, dirty=True, measured_at=later),
    ]
    (sweep,) = ledgers.read(write_results(tmp_path, rows))
    assert sweep.parent.tags["commit"] == "b" * 40 and sweep.parent.tags["dirty"] == "true"


@pytest.mark.slow
def test_a_store_that_a_full_disk_kept_from_being_made_is_made_by_the_next(
    results: Path, no_database: Path
) -> None:
    process = start(f"input={results}", f"tracking.uri={uri(no_database)}")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (300 << 10, resource.RLIM_INFINITY))
    _, err = process.communicate()
    assert process.returncode == 2
    assert err.startswith("error: can't publish to ") and err.count("\n") == 1
    log(results, uri(no_database))
    assert len(content(no_database)["runs"]) == len(NAMES | BESTS)
    assert not list(no_database.parent.glob(".mlflow.db*"))


@pytest.mark.slow
def test_a_killed_publish_is_completed_by_the_next(tmp_path: Path, database: Path) -> None:
    rows = grid(
        providers=("torch", "triton_online", "cuda"), block_sizes=(256, 512, 1024, 2048), dtypes=("float16",)
    )
    results = write_results(tmp_path / "results", rows)
    process = start(f"input={results}", f"tracking.uri={uri(database)}")
    deadline = time.monotonic() + 60
    while _count(database) < 5 and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert 5 <= _count(database) < 18, "it was not killed midway"
    log(results, uri(database))
    alone = database.with_name("alone.db")
    log(results, uri(alone))
    assert shown(database) == shown(alone)
    assert len(content(database)["runs"]) == 21


def _count(database: Path) -> int:
    if not database.exists():
        return 0
    try:
        with sqlite3.connect(database) as connection:
            return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
def test_a_server_shows_what_a_command_publishes(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    (tmp_path / "server").mkdir()
    database = tmp_path / "server" / "mlflow.db"
    with server(tmp_path / "server") as address:
        process = start(f"input={results}", "tracking=server", MLFLOW_TRACKING_URI=address)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, ""), out
        assert set(shown(database)) == NAMES
        before = content(database)
        log(results, address)
        assert content(database) == before
        view = "workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey=best"
        link = f"{address}/#/experiments/1/runs?{view}"
        assert capsys.readouterr().out.splitlines()[-1] == f"Open {link}"

        # Other clients read the same over HTTP.
        body = {"experiment_ids": ["1"], "filter": "tags.kind = 'sweep'"}
        answer = requests.post(f"{address}/api/2.0/mlflow/runs/search", json=body, timeout=10).json()
        assert {run["info"]["run_name"] for run in answer["runs"]} == {
            f"softmax @ {H200}",
            f"softmax @ {H100}",
        }
        client = MlflowClient(address)
        run_id = run_ids(database)[f"torch float32 @ {H100}"]
        steps = [metric.step for metric in client.get_metric_history(run_id, "gbps")]
        assert steps == [256, 1024, 4096]
        parent = run_ids(database)[f"softmax @ {H100}"]
        ledger = client.download_artifacts(parent, f"results/timings/softmax/{H100}.jsonl", str(tmp_path))
        assert Path(ledger).read_bytes() == (results / "timings" / "softmax" / f"{H100}.jsonl").read_bytes()


@pytest.mark.slow
def test_a_server_that_is_down_costs_a_sentence(results: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://user:secret@127.0.0.1:{probe.getsockname()[1]}"
    process = start(f"input={results}", "tracking=server", MLFLOW_TRACKING_URI=address)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == "" and len(err.splitlines()) == 1
    assert "connection refused. Nothing measured is lost" in err and "secret" not in err
    options = f"input={results} runs=null reports=null artifacts=null tracking=server"
    again = f"python -m pipeline.publish {options}"
    assert err.endswith(f"run: {again}\n")


@pytest.mark.slow
def test_a_server_that_never_answers_is_given_up(results: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UserError, match=r"it does not answer\. Nothing measured is lost"):
            log(results, f"http://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("mlruns", "names a folder"),
        ("file:///tmp/mlruns", "names a folder"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///{tmp}", "unable to open database file"),
        ("sqlite:///{tmp}/text/mlflow.db", "can't be written"),
        ("sqlite:///{tmp}/text", "file is not a database"),
        ("nonsense://host/place", "can't publish to nonsense://host/place"),
    ],
)
def test_a_store_that_can_not_be_used(results: Path, place: str, sentence: str) -> None:
    (results.parent / "text").write_text("this is no database, whatever its name may say" * 10)
    with pytest.raises(UserError, match=sentence):
        log(results, place.format(tmp=results.parent))


def test_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").mkdir()
    log(tmp_path / "results", uri(tmp_path / "mlflow.db"))
    assert "holds no measurements yet" in capsys.readouterr().out
    with pytest.raises(UserError, match="does not exist"):
        log(tmp_path / "elsewhere", uri(tmp_path / "mlflow.db"))
    none = TrackingConfig(name="none", uri=None)
    publish(PublishConfig(input=tmp_path, reports=None, kernel=None, tracking=none))
    assert "publishes nothing" in capsys.readouterr().out
    assert not (tmp_path / "mlflow.db").exists()


def test_the_store_is_the_configured_one_then_the_environment_s_then_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert connection.store_uri("local", None) == connection.DEFAULT_STORE
    assert connection.store_uri("server", None) == "http://127.0.0.1:5000"
    ours = Published(connection.DEFAULT_STORE, ("1",))
    assert how_to_open(ours).startswith("Run `make ui` and open http://127.0.0.1:5000/#/")
    options = ("runs=outputs/runs", "tracking.uri=sqlite:////tmp/x.db")
    other = Published("sqlite:////tmp/x.db", ("1",), "abc", None, options)
    ui = "python -m pipeline.ui runs=outputs/runs tracking.uri=sqlite:////tmp/x.db"
    assert how_to_open(other).startswith(f"Run `{ui}` and open http://127.0.0.1:5000/#/experiments/1/runs?")
    assert how_to_open(other).endswith("&viewStateShareKey=abc")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert (
        connection.store_uri("local", None) == connection.store_uri("server", None) == "http://tracker:5000"
    )
    assert connection.store_uri("local", "sqlite:///here.db") == f"sqlite:///{Path.cwd() / 'here.db'}"


@pytest.mark.slow
def test_a_second_publish_waits_for_the_first(tmp_path: Path, database: Path) -> None:
    square = write_results(tmp_path / "square", grid(kernels=("square",), providers=("torch_mul",)))
    with opened(uri(database)):
        second = start(f"input={square}", f"tracking.uri={uri(database)}")
        assert second.stdout is not None
        assert next(second.stdout) == f"Another command publishes to {database}: waiting until it ends.\n"
        assert not shown(database)
    out, err = second.communicate(timeout=120)
    assert (second.returncode, err) == (0, ""), out
    assert f"square @ {H200}" in shown(database)


Meanwhile = Callable[[Any, str, str], None]
"""The work of another publisher: it gets an MLflow client, the run that this publisher is about to write, and
the run that was written last."""


@pytest.fixture
def at_third_write(monkeypatch: pytest.MonkeyPatch) -> list[Meanwhile]:
    """Return a list for functions that are called before the third run is written."""
    from mlflow import MlflowClient

    written: list[str] = []
    others: list[Meanwhile] = []
    log_batch = MlflowClient.log_batch

    def interleaved(client: Any, run_id: str, *content: Any) -> None:
        written.append(run_id)
        if len(written) == 3:
            for other in others:
                other(client, run_id, written[1])
        log_batch(client, run_id, *content)

    monkeypatch.setattr(MlflowClient, "log_batch", interleaved)
    return others


def test_a_run_that_another_publisher_deletes_is_written_again(
    results: Path, database: Path, at_third_write: list[Meanwhile]
) -> None:
    at_third_write.append(lambda client, run, _: client.delete_run(run))
    log(results, uri(database))
    assert shown(database).keys() >= NAMES
    with sqlite3.connect(database) as connection:
        states = connection.execute("SELECT DISTINCT status FROM runs WHERE lifecycle_stage = 'active'")
        assert states.fetchall() == [("FINISHED",)]
    written = content(database)
    log(results, uri(database))
    assert content(database) == written, "nothing is missing"


def test_runs_that_another_publisher_moves_below_its_own_parent_come_back(
    results: Path, database: Path, monkeypatch: pytest.MonkeyPatch, at_third_write: list[Meanwhile]
) -> None:
    at_third_write.append(lambda client, _, run: client.set_tag(run, "mlflow.parentRunId", "0" * 32))
    monkeypatch.chdir(database.parent)
    monkeypatch.setattr(store, "sqlite_path", lambda uri: None)
    log(results, uri(database))
    with sqlite3.connect(database) as connection:
        parents = connection.execute("SELECT DISTINCT value FROM tags WHERE key = 'mlflow.parentRunId'")
        assert {parent for (parent,) in parents} <= set(run_ids(database).values())
