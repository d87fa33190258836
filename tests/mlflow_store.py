"""Publish to MLflow stores and read their contents."""

import base64
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests

from pipeline import ROOT
from pipeline.command.options import PublishConfig, TrackingConfig
from pipeline.publish import publish
from pipeline.tracking.connection import OFFLINE


def log(results: Path, uri: str, **options: Any) -> None:
    """Do in this process what ``python -m pipeline.publish input=... tracking.uri=...`` does."""
    tracking = TrackingConfig(name="local", uri=uri)
    publish(
        PublishConfig(**({"input": results, "reports": None, "kernel": None} | options), tracking=tracking)
    )


def start(*arguments: str, stage: str = "publish", **env: str) -> subprocess.Popen[str]:
    """Start the stage's command. Runs, reports and artifacts are published only if the arguments name
    them."""
    named = {argument.partition("=")[0] for argument in arguments}
    left_out = [f"{name}=null" for name in ("runs", "reports", "artifacts") if name not in named]
    command = [sys.executable, "-m", f"pipeline.{stage}", *left_out, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | env, stdout=pipe, stderr=pipe, text=True)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Start an MLflow server with one worker and an SQLite store in the folder. Yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    options = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--workers": "1",
        "--backend-store-uri": f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination": str(folder / "artifacts"),
    }
    command = [sys.executable, "-m", "mlflow", "server", *(word for pair in options.items() for word in pair)]
    env = os.environ | OFFLINE | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("w") as output:
        process = subprocess.Popen(
            command, env=env, cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 60
        while not _answers(address):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def behind_a_password(address: str, user: str, password: str) -> Iterator[str]:
    """Start a proxy that forwards requests with this user and password to the server. Yield its address
    without credentials."""
    expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Proxy(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization") != expected:
                self.answer(401, b"who are you?")
                return
            headers = {"Content-Type": self.headers.get("Content-Type", "")}
            done = requests.request(self.command, address + self.path, data=body, headers=headers, timeout=60)
            self.answer(done.status_code, done.content)

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log no requests."""

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward  # noqa: N815  # as http.server calls them

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}"
        proxy.shutdown()


def _answers(address: str) -> bool:
    try:
        return requests.get(f"{address}/health", timeout=5).ok
    except requests.ConnectionError:
        return False


def content(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row that MLflow keeps about runs and experiments."""
    tables = ("experiments", "experiment_tags", "runs", "params", "tags", "metrics", "latest_metrics")
    with sqlite3.connect(database) as connection:
        return {table: sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in tables}


SEEN = """FROM runs JOIN experiments USING (experiment_id)
WHERE runs.lifecycle_stage = 'active' AND experiments.name = coalesce(?, experiments.name)
AND (? OR run_uuid NOT IN (SELECT run_uuid FROM tags WHERE key = 'kind' AND value = 'best'))"""


def shown(database: Path, experiment: str | None = None, best: bool = False) -> dict[str, dict[str, Any]]:
    """Return the runs that a user sees, of one experiment or of all, by name and without their ids. With
    ``best``, include the runs that repeat the best of each provider. Fails if two runs have the same name."""
    query = f"SELECT run_uuid, runs.name, status, start_time, end_time {SEEN}"
    with sqlite3.connect(database) as connection:

        def table(name: str, columns: str, run_id: str) -> list[tuple[Any, ...]]:
            rows = connection.execute(f"SELECT {columns} FROM {name} WHERE run_uuid = ?", [run_id])
            return sorted(rows)

        runs = {}
        names = {}
        for run_id, name, *info in connection.execute(query, [experiment, best]).fetchall():
            assert name not in runs, f"{name} is there twice"
            names[run_id] = name
            runs[name] = {
                "info": info,
                "params": dict(table("params", "key, value", run_id)),
                "tags": dict(table("tags", "key, value", run_id)),
                "metrics": table("metrics", "key, step, value, timestamp, is_nan", run_id),
            }
    for run in runs.values():
        if parent := run["tags"].pop("mlflow.parentRunId", None):
            run["parent"] = names[parent]
    return runs


def run_ids(database: Path, experiment: str | None = None, best: bool = False) -> dict[str, str]:
    """Return the id of each run that ``shown`` returns, by name."""
    with sqlite3.connect(database) as connection:
        return dict(connection.execute(f"SELECT runs.name, run_uuid {SEEN}", [experiment, best]).fetchall())
