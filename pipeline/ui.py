"""Serve MLflow's pages of the published results until Ctrl-C, as ``make ui`` does.

    python -m pipeline.ui
    python -m pipeline.ui kernel=softmax
    python -m pipeline.ui input=null

Takes publish's options, and publishes while it serves the pages. Only the printed link opens them. For a
server's store it publishes and prints the server's link.
"""

from __future__ import annotations

import fcntl
import gc
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Self

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.lock import own_file, runtime_folder
from kernel_pipeline.machine.reaper import under_reaper
from kernel_pipeline.records.credentials import hidden, taken_apart

from . import ROOT
from .command import interrupt
from .command.options import PublishConfig
from .command.run import run_stage, say
from .publish import sources_of, tracker_of
from .tracking import guard, publisher
from .tracking.connection import OFFLINE, is_server, sqlite_path, store_uri
from .tracking.publisher import Published

HOST = "127.0.0.1"
PORTS = range(5000, 5010)
"""Ports of this machine; the first free port is used."""

START_S = 120
"""Seconds that a server may take to answer, on a slow disk with cold caches."""


def show(config: PublishConfig) -> None:
    """Serve the store, print its link, and publish meanwhile. Raises UserError if the store can't be used or
    no server starts."""
    sources, tracker = sources_of(config), tracker_of(config)
    found = None if sources is None else publisher.find(sources, say)
    if found is None:
        return
    uri = store_uri(tracker.name, tracker.uri)
    if is_server(uri):
        say(publisher.how_to_open(publisher.write(found, tracker, say)))
        return
    with claimed_port() as port, _Server(uri, port) as server:
        links: list[str] = []

        def print_link(published: Published) -> None:
            link = publisher.page(published, f"http://{HOST}:{port}")
            link = link.replace("/#", f"/?token={server.token}#", 1)
            if not links:
                server.wait_for_answer()
            if link not in links:
                say(f"Open {link} (Ctrl-C ends it)")
            links.append(link)

        is_published = False
        gc.disable()  # in a callback of the garbage collector a signal's exception would only be printed
        try:
            with interrupt.insistent():
                published = publisher.write(found, tracker, say, begun=print_link)
                is_published = True
                print_link(published)
                server.process.wait()
        except KeyboardInterrupt:
            if not is_published:
                say("Not every run is published; the next publish continues from there.")
            return
    raise UserError("the MLflow server has ended; start it again.")


@contextmanager
def claimed_port() -> Iterator[int]:
    """Claim the first free port that no other command of this user has claimed at the same time."""
    folder = runtime_folder()
    for port in PORTS:
        with own_file(folder / f"ui-{port}.lock") as lock:
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


class _Server:
    """MLflow's server of a store that need not exist yet, as a context manager."""

    def __init__(self, uri: str, port: int) -> None:
        self._uri = uri
        self._port = port
        self.token = secrets.token_urlsafe(24)

    def __enter__(self) -> Self:
        """Launch the server out of reach of Ctrl-C. It ends with this process."""
        command = [sys.executable, "-W", "ignore", "-m", "uvicorn", "--app-dir", str(ROOT), "--factory"]
        command += ["--host", HOST, "--port", str(self._port), "--no-proxy-headers", "--no-access-log"]
        command.append(f"{guard.__name__}:{guard.application.__name__}")
        # All users can read a command line, and a database's address may hold a password.
        env = {guard.STORE: taken_apart(self._uri).whole, guard.TOKEN: self.token}
        env |= {**OFFLINE, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # jobs are for language models
        self._output: IO[bytes] = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            under_reaper(command), env=os.environ | env, stdout=self._output, stderr=self._output
        )
        return self

    def wait_for_answer(self) -> None:
        """Wait until the server answers and the store exists. Raises UserError if it does not start."""
        store = sqlite_path(self._uri)
        deadline = time.monotonic() + START_S
        while not (self._answers() and (store is None or store.exists())):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self._output.seek(0)
                lines = self._output.read().decode(errors="replace").strip().splitlines()
                reason = hidden(lines[-1], [self._uri]) if lines else "it printed nothing"
                raise UserError(f"the MLflow server does not start: {reason}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        request = urllib.request.Request(
            f"http://{HOST}:{self._port}/health", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def __exit__(self, *_: object) -> None:
        """End the server. Requests until then are in the store."""
        with self._output:
            self.process.terminate()
            self.process.wait()


if __name__ == "__main__":
    run_stage("publish", PublishConfig, show)
