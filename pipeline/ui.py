"""Serve MLflow's own pages over the published results, until Ctrl-C, as ``make ui`` does.

    python -m pipeline.ui
    python -m pipeline.ui kernel=softmax
    python -m pipeline.ui input=null

Takes publish's options and publishes first, so that the pages show what the ledgers hold. A store that a
server keeps is shown by that server already; its link is printed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from pipeline import UserError
from pipeline.command import interrupt
from pipeline.command.options import PublishConfig
from pipeline.command.run import run_stage, say
from pipeline.machine import own
from pipeline.machine.lock import runtime_folder
from pipeline.publish import published_by
from pipeline.reporting import mlflow_address, mlflow_publish
from pipeline.reporting.mlflow_connection import OFFLINE
from pipeline.store.credentials import hidden, taken_apart

HOST = "127.0.0.1"
PORTS = range(5000, 5010)
"""The first of these that is free; only this machine can reach it."""

START_S = 120
"""Seconds that a server may take to answer, on a slow disk with cold caches."""


def show(config: PublishConfig) -> None:
    """Publish, serve the store and say where it is.

    Raises UserError when the store can't be used or no server comes up.
    """
    published = published_by(config)
    if published is None:
        return
    if mlflow_address.is_server(published.uri):
        say(mlflow_publish.how_to_open(published))
        return
    uri = mlflow_address.store_of(config.tracking.name, config.tracking.uri)
    with claimed_port() as port, _serving(uri, port) as server:
        say(f"Open {mlflow_publish.page(published, f'http://{HOST}:{port}')} (Ctrl-C ends it)")
        try:
            interrupt.awaited()
            server.wait()
        except KeyboardInterrupt:
            return
    raise UserError("the MLflow server has ended by itself; start it again.")


@contextmanager
def claimed_port() -> Iterator[int]:
    """The first port that nothing listens on, and that no other command of this user, started at the same
    moment, has chosen for its server."""
    folder = runtime_folder()
    for port in PORTS:
        with own.file(folder / f"ui-{port}.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if _is_free(port):
                yield port
                return
    raise UserError(f"ports {PORTS[0]} to {PORTS[-1]} are all in use; end a server that you no longer need.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@contextmanager
def _serving(uri: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers. It has a session of its own: Ctrl-C would make it end in tracebacks."""
    command = [sys.executable, "-W", "ignore", "-m", "mlflow", "server", "--host", HOST, "--port", str(port)]
    # One worker answers sooner than four, which share one database; jobs are for language models.
    command += ["--workers", "1"]
    env = os.environ | OFFLINE | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # Not on its command line, which every user of this machine can read: a database's address may hold a
    # password.
    env["MLFLOW_BACKEND_STORE_URI"] = taken_apart(uri).whole
    with tempfile.TemporaryFile() as output:
        server = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
        try:
            _wait_for_answer(server, port, output, uri)
            yield server
        finally:
            _end(server)


def _wait_for_answer(server: subprocess.Popen[bytes], port: int, output: IO[bytes], uri: str) -> None:
    deadline = time.monotonic() + START_S
    while not _answers(port):
        if server.poll() is not None or time.monotonic() > deadline:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            said = hidden(lines[-1], [uri]) if lines else "it says nothing"
            raise UserError(f"the MLflow server does not start: {said}")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and the worker that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


if __name__ == "__main__":
    run_stage("publish", PublishConfig, show)
