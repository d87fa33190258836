"""An ad-hoc sweep has its own MLflow runs, which a later publish of the results keeps."""

import json
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from pipeline.command.options import PublishConfig, TrackingConfig
from pipeline.publish import publish
from pipeline.store import runs
from pipeline.store.rows import encode
from tests.factory import H100, H200, environment, grid, measurement, write_record, write_results
from tests.mlflow_store import content, log, run_ids, shown, start

FIRST, SECOND = "20261121T130000Z-aaaaaa", "20261121T140000Z-bbbbbb"
ROWS = grid(sizes=(256, 512), block_sizes=(512,), num_warps=(4,))
CONFIGURATIONS = ("softmax", "torch float32", "triton_online float32 512x4w")
OF_RESULTS = {f"{name} @ {H200}" for name in CONFIGURATIONS}
"""The names of the runs that the results give."""


def of_sweep(run: str, *names: str) -> set[str]:
    """Return the names of an ad-hoc sweep's runs."""
    return {f"{name} @ {H200}, {run}" for name in names or CONFIGURATIONS}


@pytest.fixture(autouse=True)
def no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def client_of(database: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{database}")


def publish_both(output: Path, database: Path, results: Path | None = None) -> None:
    """Publish results and the records of ad-hoc sweeps in a folder, as ``python -m pipeline.publish``
    does."""
    config = PublishConfig(
        input=results,
        runs=runs.folder_in(output),
        reports=None,
        tracking=TrackingConfig(name="local", uri=f"sqlite:///{database}"),
    )
    publish(config)


@pytest.mark.slow
def test_results_and_ad_hoc_sweeps_leave_each_other_alone_and_both_come_back(
    tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = write_results(tmp_path / "results", ROWS)
    log(results, f"sqlite:///{database}")
    before = run_ids(database, "softmax")
    assert set(before) == OF_RESULTS

    # The sweep has the same kernel and machine, and a subset of the points that the results hold.
    record = write_record(tmp_path / "outputs", ROWS[:2], FIRST)
    publish_both(tmp_path / "outputs", database)
    said = capsys.readouterr().out
    ids = run_ids(database, "softmax")
    first = of_sweep(FIRST, "softmax", "torch float32")
    assert set(ids) == OF_RESULTS | first
    experiment = client_of(database).get_experiment_by_name("softmax").experiment_id
    link = f"http://127.0.0.1:5000/#/experiments/{experiment}/runs?"
    last = said.splitlines()[-1]
    search = urllib.parse.unquote(last.rpartition("&searchFilter=")[2].partition("&orderByKey=")[0])
    assert link in last and search == f"tags.kind = 'config' and tags.run = '{FIRST}'"
    found = client_of(database).search_runs([experiment], search)
    assert {run.info.run_name for run in found} == first - {f"softmax @ {H200}, {FIRST}"}

    write_record(tmp_path / "outputs", [measurement(size=256, median_us=1.0)], SECOND)
    for _ in range(2):
        publish_both(tmp_path / "outputs", database, results)
        log(results, f"sqlite:///{database}")
    after = run_ids(database, "softmax")
    second = of_sweep(SECOND, "softmax", "torch float32")
    assert set(after) == OF_RESULTS | first | second
    assert {name: after[name] for name in ids} == ids, "as they were"

    runs_shown = shown(database, "softmax")
    parent = runs_shown[f"softmax @ {H200}, {FIRST}"]
    assert (parent["tags"]["kind"], parent["tags"]["changed"]) == ("ad_hoc", "2 new")
    assert parent["tags"]["command"] == "python -m pipeline.sweep kernel=softmax"
    assert parent["tags"]["commit"] == ROWS[0].origin.commit
    assert parent["params"]["driver"] == environment(H200).driver
    child = runs_shown[f"torch float32 @ {H200}, {FIRST}"]
    assert child["parent"] == f"softmax @ {H200}, {FIRST}"
    assert {step for key, step, *_ in child["metrics"] if key == "median_us"} == {256, 512}
    artifacts = database.parent / "mlartifacts/softmax" / after[f"softmax @ {H200}, {FIRST}"] / "artifacts"
    assert (artifacts / "runs" / record.name).read_bytes() == record.read_bytes()

    # The command publishes everything from the files into a new store.
    new = tmp_path / "new" / "mlflow.db"
    words = [f"input={results}", f"runs={record.parent}", f"tracking.uri=sqlite:///{new}"]
    out, err = (process := start(*words)).communicate(timeout=120)
    assert (process.returncode, err) == (0, ""), out
    assert shown(new, "softmax") == runs_shown


def test_publishing_another_folder_takes_nothing_away(tmp_path: Path, database: Path) -> None:
    results = write_results(tmp_path / "results", ROWS)
    log(results, f"sqlite:///{database}")
    before = set(run_ids(database, "softmax").values())
    log(write_results(tmp_path / "elsewhere" / "results", ROWS[:1]), f"sqlite:///{database}")
    active = {run.info.run_id for run in client_of(database).search_runs([_experiment(database)])}
    assert before < active and len(active) == len(before) + 5, "with the best of two providers and of one"


def _experiment(database: Path) -> str:
    return str(client_of(database).get_experiment_by_name("softmax").experiment_id)


def test_what_a_person_deleted_stays_deleted_and_results_come_back(tmp_path: Path, database: Path) -> None:
    results = write_results(tmp_path / "results", ROWS)
    for run in (FIRST, SECOND):
        write_record(tmp_path / "outputs", ROWS, run)
    publish_both(tmp_path / "outputs", database, results)
    ids = run_ids(database, "softmax")
    for name in (f"softmax @ {H200}, {FIRST}", f"torch float32 @ {H200}, {SECOND}", f"softmax @ {H200}"):
        client_of(database).delete_run(ids[name])
    publish_both(tmp_path / "outputs", database, results)
    after = run_ids(database, "softmax")
    assert set(ids) - set(after) == {f"softmax @ {H200}, {FIRST}", f"torch float32 @ {H200}, {SECOND}"}
    client_of(database).restore_run(ids[f"softmax @ {H200}, {FIRST}"])
    publish_both(tmp_path / "outputs", database, results)
    assert run_ids(database, "softmax") == after | {
        f"softmax @ {H200}, {FIRST}": ids[f"softmax @ {H200}, {FIRST}"]
    }


def test_a_sweep_that_is_measuring_is_left_out_and_a_killed_one_is_shown(
    tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = write_record(tmp_path / "outputs", ROWS[:1], FIRST, killed=True)
    with killed.open("ab") as file:
        file.write(b'{"key":"torn')
    hold = """if True:
        import fcntl, sys
        file = open(sys.argv[1], "ab")
        fcntl.flock(file, fcntl.LOCK_EX)
        print("held", flush=True)
        sys.stdin.read()
    """
    going_on = write_record(tmp_path / "outputs", ROWS[:1], SECOND, killed=True)
    words = [sys.executable, "-c", hold, str(going_on)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sweep:
        assert sweep.stdout is not None and sweep.stdout.readline() == b"held\n"
        publish_both(tmp_path / "outputs", database)
        assert sweep.stdin is not None
        sweep.stdin.close()
    first = of_sweep(FIRST, "softmax", "torch float32")
    assert set(run_ids(database, "softmax")) == first
    assert "is not a measurement (incomplete or edited); skipped" in capsys.readouterr().err
    publish_both(tmp_path / "outputs", database)
    assert set(run_ids(database, "softmax")) == first | of_sweep(SECOND, "softmax", "torch float32")


def test_a_record_is_what_its_name_and_first_line_say(
    tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs.folder_in(tmp_path)
    record = write_record(tmp_path, ROWS[:1], FIRST, before=measurement(source="0" * 16).parts)
    heading, row = record.read_text().splitlines()
    assert json.loads(heading)["changed"] == {"point": 1, "source": 1}
    foreign = measurement(gpu=H100).replace(origin=ROWS[0].origin)
    lines = [
        heading,
        row,
        encode(measurement(gpu=H100)).decode().strip(),
        encode(foreign).decode().strip(),
        "[" * 10**5,
    ]
    record.write_text("\n".join(lines))
    (folder / f"{SECOND}.jsonl").write_text(heading)
    (folder / "notes.jsonl").write_text("\x00{")
    (folder / "empty.jsonl").touch()
    publish_both(tmp_path, database)
    assert shown(database, "softmax")[f"softmax @ {H200}, {FIRST}"]["tags"]["points"] == "1 ok"
    said = capsys.readouterr().err
    assert said.count("is of another sweep, kernel or machine than its file; skipped.") == 2
    assert said.count("does not begin with the heading of a sweep's record; skipped.") == 2
    assert said.count(f"names another run, {FIRST}, in its first line; skipped.") == 1
    assert said.count("is not a measurement") == 1 and "Traceback" not in said


def test_a_killed_publish_is_completed(tmp_path: Path, database: Path) -> None:
    for run in (FIRST, SECOND):
        write_record(tmp_path / "outputs", ROWS, run)
    publish_both(tmp_path / "outputs", database)
    everything = of_sweep(FIRST) | of_sweep(SECOND)
    assert set(run_ids(database, "softmax")) == everything

    # A killed publish leaves a run that has not ended, and no run for one configuration.
    client = client_of(database)
    ids = run_ids(database, "softmax")
    client.update_run(ids[f"softmax @ {H200}, {FIRST}"], status="RUNNING")
    client.update_run(ids[f"torch float32 @ {H200}, {FIRST}"], status="RUNNING")
    gone = ids.pop(f"triton_online float32 512x4w @ {H200}, {FIRST}")
    client.delete_run(gone)
    publish_both(tmp_path / "outputs", database)
    assert set(shown(database, "softmax")) == everything
    assert ids.items() < run_ids(database, "softmax").items()
    before = content(database)
    publish_both(tmp_path / "outputs", database)
    assert content(database) == before
