"""The services of docker/compose.yaml without containers: their own settings, on this machine's loopback."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import yaml

from pipeline import ROOT
from tests.processes import completed

COMPOSE = ROOT / "docker" / "compose.yaml"
PASSWORD = "not@the/example's"
"""With what would break an address that it is part of."""


def service(name: str, env: Mapping[str, str]) -> dict[str, Any]:
    """A service's settings, its variables replaced as compose replaces them."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: env.get(m[1]) or m[2], COMPOSE.read_text())
    found: dict[str, Any] = yaml.safe_load(text)["services"][name]
    return found


def postgres_programs() -> Path | None:
    """Where the distribution keeps PostgreSQL's programs; None where it is not installed."""
    return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


@contextmanager
def tracking_server(folder: Path) -> Iterator[Server]:
    """MLflow over PostgreSQL, ended with all that it wrote."""
    folder.mkdir()
    with database() as port:
        server = Server(folder, port)
        try:
            server.start()
            yield server
        finally:
            server.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def database() -> Iterator[int]:
    """The port of a PostgreSQL made and started as its image does with its settings, but on loopback."""
    declared = service("db", {"POSTGRES_PASSWORD": PASSWORD})
    settings, command = declared["environment"], declared["command"]
    assert command[0] == "postgres"
    programs = postgres_programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
    # PostgreSQL refuses to run as root.
    become = ["runuser", "--user", "postgres", "--"] if os.geteuid() == 0 else []
    if become:
        shutil.chown(folder, "postgres", "postgres")
    port = free_port()
    data, log = folder / "data", folder / "log"
    (password := folder / "password").write_text(settings["POSTGRES_PASSWORD"])
    password.chmod(0o644)  # read by another account, in a folder that is that account's alone
    here = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
    options = f"{shlex.join(command[1:])} {here}"

    def call(*words: str | Path) -> None:
        done = completed([*become, *words], cwd=folder)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    try:
        user = f"--username={settings['POSTGRES_USER']}"
        call(programs / "initdb", user, "--auth=scram-sha-256", f"--pwfile={password}", data)
        control: tuple[str | Path, ...] = (programs / "pg_ctl", "--wait", "-D", data)
        call(*control, "--log", log, "-o", options, "start")
        try:
            made = subprocess.run(
                [programs / "createdb", "--host=127.0.0.1", f"--port={port}", user, settings["POSTGRES_DB"]],
                env=os.environ | {"PGPASSWORD": settings["POSTGRES_PASSWORD"]},
                check=False,
            )
            assert made.returncode == 0
            yield port
        finally:
            call(*control, "--mode=immediate", "stop")
    finally:
        shutil.rmtree(folder)


class Server:
    """MLflow's server as compose starts it; only host, port and folders are this machine's."""

    def __init__(self, folder: Path, database_port: int) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.settings = service("mlflow", {"POSTGRES_PASSWORD": PASSWORD})
        here = {
            "--host=0.0.0.0": "--host=127.0.0.1",
            "--port=5000": f"--port={self.port}",
            "@db:5432/": f"@127.0.0.1:{database_port}/",
            "=/artifacts": f"={folder / 'artifacts'}",
        }
        self.command = []
        for word in self.settings["command"]:
            for there, place in here.items():
                word = word.replace(there, place)  # noqa: PLW2901
            self.command.append(word)
        assert sum(new in word for word in self.command for new in here.values()) == len(here)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, by the image's entry point, and wait until it answers."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with (self.folder / "server.log").open("ab") as output:
            self.process = subprocess.Popen(
                [ROOT / "docker" / "server-entrypoint", *self.command],
                env=os.environ | self.settings["environment"] | {"PATH": path},
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (self.folder / "server.log").read_text()[-3000:]
            time.sleep(0.2)

    def kill(self) -> None:
        """End it and all its workers as a power cut would."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.address}/health", timeout=5).ok
        except requests.ConnectionError:
            return False
