"""The team's tracking server, without containers: PostgreSQL and MLflow with the settings of compose.yaml."""

import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from kernel_pipeline.records.measurement import Measurement
from pipeline import ROOT
from tests.docker.compose import COMPOSE, PASSWORD, Server, postgres_programs, service, tracking_server
from tests.factory import H200, measurement, write_results
from tests.mlflow_store import start
from tests.processes import completed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("server")]
needs_postgresql = pytest.mark.skipif(
    postgres_programs() is None, reason="needs Debian's postgresql: apt-get install postgresql"
)

CONFIGURATIONS = 1000 if os.environ.get("TEST_PROOFS") else 60
"""`make test-docker` takes the minutes that a thousand need."""

PARENT_AND_BEST = 2
"""Runs beside those of the configurations: the ledger's, and the best of its one provider."""


def configurations(count: int) -> list[Measurement]:
    """As many configurations of one provider, a size each."""
    return [
        measurement(
            provider="triton_online",
            block_size=64 << number % 8,
            num_warps=1 << number // 8 % 6,
            num_stages=1 + number // 48,
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with tracking_server(tmp_path_factory.mktemp("server") / "here") as made:
        yield made


def search(server: Server, experiment: str, view: str = "ACTIVE_ONLY") -> list[dict[str, Any]]:
    """All runs of an experiment, as anybody reads them."""
    api = f"{server.address}/api/2.0/mlflow"
    found = requests.get(f"{api}/experiments/get-by-name", {"experiment_name": experiment}, timeout=60)
    if found.status_code == 404:
        return []
    body = {
        "experiment_ids": [found.json()["experiment"]["experiment_id"]],
        "max_results": 5000,
        "run_view_type": view,
    }
    answer = requests.post(f"{api}/runs/search", json=body, timeout=120)
    assert answer.ok, answer.text
    return list(answer.json().get("runs", []))


def published(server: Server, results: Path) -> subprocess.Popen[str]:
    return start(f"input={results}", "tracking=server", MLFLOW_TRACKING_URI=server.address)


@pytest.mark.long
@needs_postgresql
def test_four_publish_the_same_configurations_while_the_server_is_killed_and_started_again(
    server: Server, tmp_path: Path
) -> None:
    """None creates the experiment before the others look for it. Who gives up says how to go on, and going on
    leaves each run once and whole."""
    rows = configurations(CONFIGURATIONS)
    machines = [write_results(tmp_path / "results", rows)] * 4
    processes = [published(server, machine) for machine in machines]
    deadline = time.monotonic() + 300
    while len(search(server, "softmax")) < CONFIGURATIONS // 4:
        assert time.monotonic() < deadline
        time.sleep(1)
    assert all(process.poll() is None for process in processes), "it is killed midway"
    server.kill()
    server.start()
    attempts = 4
    for process, machine in zip(processes, machines, strict=True):
        again, tries = process, 0
        while (output := again.communicate(timeout=600))[1] or again.returncode:
            assert again.returncode == 2 and "Nothing measured is lost" in output[1], output
            tries += 1
            assert tries < 3
            attempts += 1
            again = published(server, machine)

    runs = search(server, "softmax")
    assert len(runs) == PARENT_AND_BEST + CONFIGURATIONS
    names = Counter(run["info"]["run_name"] for run in runs)
    assert set(names.values()) == {1}
    assert {run["info"]["status"] for run in runs} == {"FINISHED"}
    parents = {
        tag["value"] for run in runs for tag in run["data"]["tags"] if tag["key"] == "mlflow.parentRunId"
    }
    (parent,) = (run for run in runs if run["info"]["run_name"] == f"softmax @ {H200}")
    assert parents == {parent["info"]["run_id"]}
    # The artifacts went through the server to the folder that only it sees.
    assert parent["info"]["artifact_uri"].startswith("mlflow-artifacts:/")
    (ledger,) = (server.folder / "artifacts").rglob(f"timings/softmax/{H200}.jsonl")
    written = machines[0] / "timings" / "softmax" / f"{H200}.jsonl"
    assert ledger.read_bytes() == written.read_bytes()
    expected = {row.rate.gbps for row in rows if row.rate}
    shown = {m["value"] for run in runs for m in run["data"]["metrics"] if m["key"] == "gbps"}
    assert shown == expected
    wasted = len(search(server, "softmax", "DELETED_ONLY"))
    assert wasted <= attempts * len(runs), "nobody makes a run more than once"

    # A fifth machine finds nothing to do.
    ids = {run["info"]["run_id"] for run in runs}
    done = published(server, machines[0])
    _, err = done.communicate(timeout=300)
    assert (done.returncode, err) == (0, "")
    assert {run["info"]["run_id"] for run in search(server, "softmax")} == ids
    assert len(search(server, "softmax", "DELETED_ONLY")) == wasted


@needs_postgresql
@pytest.mark.parametrize(
    ("host", "allowed"),
    [("localhost:5000", True), ("mlflow:5000", True), ("127.0.0.1:5000", True), ("evil.example", False)],
)
def test_a_foreign_host_header_is_refused(server: Server, host: str, allowed: bool) -> None:
    answer = requests.post(
        f"{server.address}/api/2.0/mlflow/experiments/search",
        json={"max_results": 1},
        headers={"Host": host},
        timeout=30,
    )
    assert answer.status_code == (200 if allowed else 403)
    assert ("experiments" in answer.text) == allowed


@needs_postgresql
def test_no_process_shows_the_password(server: Server) -> None:
    assert server.process is not None
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            assert PASSWORD.encode() not in (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended


@pytest.mark.parametrize(("password", "word"), [("change-me", "is still the example's"), ("", "is not set")])
def test_nothing_starts_with_a_password_that_everybody_knows(
    password: str, word: str, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    done = completed(
        [ROOT / "docker/server-entrypoint", "touch", started],
        env=os.environ | {"POSTGRES_PASSWORD": password},
    )
    assert done.returncode == 1 and not started.exists()
    assert done.stderr.startswith(f"error: POSTGRES_PASSWORD {word}: choose one in docker/.env")


def test_the_example_is_what_the_check_refuses_and_all_wait_for_the_check() -> None:
    example = dict(
        line.split("=", 1)
        for line in (ROOT / "docker/.env.example").read_text().splitlines()
        if not line.startswith("#")
    )
    check, database, mlflow = (service(name, example) for name in ("check", "db", "mlflow"))
    for settings in (check, database, mlflow):
        assert settings["environment"]["POSTGRES_PASSWORD"] == "change-me"
    assert database["depends_on"] == {"check": {"condition": "service_completed_successfully"}}
    assert mlflow["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert check["image"] == mlflow["image"]


def test_services_are_reached_from_this_machine_alone_watched_and_restarted() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ports = {name: settings.get("ports", []) for name, settings in services.items()}
    assert ports == {"check": [], "db": [], "mlflow": ["127.0.0.1:${MLFLOW_PORT:-5000}:5000"]}
    assert {services[name]["restart"] for name in ("db", "mlflow")} == {"unless-stopped"}
    assert "healthcheck" in services["db"]
    assert "HEALTHCHECK" in (ROOT / "docker/server.Dockerfile").read_text()
    assert re.search(r":\d+\.\d+", services["db"]["image"]), "pinned"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """docker/ with an engine that only writes down how it was called."""
    for name in ("docker", "locks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns(".env"))
    engine = tmp_path / "bin" / "docker"
    engine.parent.mkdir()
    engine.write_text(f'#!/bin/sh\n[ "$2" = version ] || echo "$@" >>{tmp_path}/calls\n')
    engine.chmod(0o755)
    return tmp_path


def serve(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return completed(
        [checkout / "docker/serve", *arguments], env={"PATH": f"{checkout / 'bin'}:/usr/bin:/bin"}
    )


def test_make_server_asks_for_a_password_and_says_where_the_server_is(checkout: Path) -> None:
    asked = serve(checkout)
    assert asked.returncode == 1 and "cp docker/.env.example docker/.env" in asked.stderr
    settings = checkout / "docker/.env"
    shutil.copy(checkout / "docker/.env.example", settings)
    refused = serve(checkout)
    assert refused.returncode == 1 and "still the example's" in refused.stderr
    assert not (checkout / "calls").exists()
    settings.write_text("POSTGRES_PASSWORD=secret\nMLFLOW_PORT=5050\n")
    started = serve(checkout)
    assert started.returncode == 0, started.stderr
    calls = (checkout / "calls").read_text().splitlines()
    (build,) = (number for number, call in enumerate(calls) if call.startswith("build "))
    assert "--file docker/server.Dockerfile --tag kernel-pipeline:server " in calls[build]
    assert calls[build + 1 :] == ["compose --file compose.yaml --env-file .env up --detach --wait"]
    assert "http://127.0.0.1:5050" in started.stdout and "secret" not in started.stdout
    assert serve(checkout, "down").returncode == 0
    assert (checkout / "calls").read_text().splitlines()[-1].endswith(".env down")
