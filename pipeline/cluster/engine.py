"""Ray, and all that is known of it: how a cluster is found, what it has, how a station on it is asked."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any, Literal

from pipeline import UserError
from pipeline.cluster.station import Station

Engine = Literal["ray", "ray-local"]

ANSWERS_S = 10.0
"""How long an address may take to accept a connection."""

CONNECT_S = 30.0
"""Far longer than joining a cluster takes, and less than Ray's own 80 s, which end without a sentence."""

AT_ONCE = 16
"""Processes that a cluster which is started here starts at the same time: more than a host has GPUs."""

STDERR = 2
"""The descriptor, which also code that is not Python's writes to."""

HERE = "the cluster that cluster=ray-local started here"


class LostError(Exception):
    """A station is gone, with its process or its host."""


@dataclass(frozen=True)
class Node:
    """A host of the cluster, by Ray's id, its name and its number here, from 1."""

    id: str
    name: str
    number: int
    gpus: int

    def __str__(self) -> str:
        return f"node{self.number} ({self.name})"


class Remote:
    """A station on a host, as the sweep asks it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def ask(self, method: str, *words: Any) -> Any:
        """What it answers, as ``answer`` gives it."""
        return self.answer(self.asked(method, *words))

    def asked(self, method: str, *words: Any) -> Any:
        """Ask and wait for nothing; ``Cluster.ready`` and ``answer`` take what this gives."""
        import ray

        with _told(ray):
            return getattr(self._actor, method).remote(*words)

    def answer(self, asked: Any) -> Any:
        """What came of it, however long that takes. Raises LostError when the station is gone, and UserError
        as the station does."""
        import ray

        with _told(ray):
            return ray.get(asked)

    def end(self) -> None:
        """End it at once, with all that it has started; who waits for an answer learns that it is gone."""
        import ray

        with suppress(Exception):  # it is gone, or the cluster is
            ray.kill(self._actor)


class Cluster:
    """A Ray cluster that this process has joined."""

    def __init__(self, ray: Any, where: str) -> None:
        self._ray = ray
        self.where = where

    def nodes(self) -> list[Node]:
        """Its hosts that are alive, always in the same order."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        alive.sort(key=lambda node: (node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"]))
        return [
            Node(node["NodeID"], node["NodeManagerHostname"], number, int(node["Resources"].get("GPU", 0)))
            for number, node in enumerate(alive, start=1)
        ]

    def station(self, node: Node, kind: str, assignment: str) -> Remote:
        """Start a station on a host, on the next of its GPUs that is free; nothing is waited for."""
        pinned = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        made = self._ray.remote(Station).options(
            num_cpus=0,
            num_gpus=1 if kind == "cuda" else 0,
            max_restarts=0,
            scheduling_strategy=pinned,
        )
        return Remote(made.remote(assignment))

    def ready(self, waiting: Sequence[Any], seconds: float) -> list[Any]:
        """Those of what was asked that have been answered, waiting for the first for so long."""
        return list(self._ray.wait(list(waiting), num_returns=1, timeout=seconds)[0])


@contextmanager
def _told(ray: Any) -> Iterator[None]:
    """A station's mistakes as its own errors, and its end as LostError."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, UserError):
            raise cause from error
        raise LostError(f"it raised {cause!r}") from error
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise LostError(_line(error)) from error


def _line(error: Exception) -> str:
    """The line of an error of Ray's that says why: what it raised, or its reason, or its last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line.partition(":")[0] or "because" in line]
    return (told or lines or [type(error).__name__])[-1][:300]


@contextmanager
def joined(engine: Engine, kind: str, tree: Path) -> Iterator[Cluster]:
    """A cluster: the one that RAY_ADDRESS or Ray's own file names, or one that is started here and ends
    again. What runs on it is ``tree``. Raises UserError with what is missing."""
    ray = _ray()
    address = None if engine == "ray-local" else _address()
    named = "the Ray cluster" if address == "auto" else f"the Ray cluster at {address}"
    where = HERE if address is None else named
    options: dict[str, Any] = {
        "runtime_env": {"working_dir": str(tree)},
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
    }
    folder = None
    if address is None:
        # The path of a socket has 107 bytes at most, and Ray's own part of it takes most of them.
        folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
        options |= {"include_dashboard": False, "num_gpus": None if kind == "cuda" else 0}
        # Stations ask for no processor. Ray would start a process for each that it may use, ahead and without
        # the sources, so that none could be a station; and it would start stations one after another.
        options |= {"num_cpus": 0, "_system_config": {"worker_maximum_startup_concurrency": AT_ONCE}}
        options["_temp_dir"] = folder.name
    try:
        with _quiet() as said:
            watch = Timer(CONNECT_S, _give_up, [where, said])
            watch.daemon = True
            watch.start()
            try:
                ray.init(address=address or "local", **options)
            finally:
                watch.cancel()
    except (ray.exceptions.RayError, RuntimeError, OSError, ValueError, SystemExit) as error:
        raise UserError(_not_joined(where, str(error))) from error
    try:
        yield Cluster(ray, where)
    finally:
        ray.shutdown()
        if folder is not None:
            folder.cleanup()


def _ray() -> Any:
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "cluster= needs Ray, which is not installed: run "
            "python locks/install.py ray, by the Python of this command."
        )
    # Nothing is told to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import ray.util.scheduling_strategies

    return ray


def _address() -> str:
    """The cluster's address, after a look whether anybody is there. Raises UserError."""
    address = os.environ.get("RAY_ADDRESS", "").strip() or "auto"
    if address == "auto":
        return address
    if "://" in address:
        raise UserError(
            f"RAY_ADDRESS={address} is Ray Client's, over which no sweep runs: write HOST:PORT, as ray start "
            "prints it, on a host of the cluster."
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(
            f"RAY_ADDRESS={address} is no address: write HOST:PORT, as ray start prints it, or auto."
        )
    try:
        socket.create_connection((host, int(port)), ANSWERS_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({getattr(error, 'strerror', None) or error}): "
            "start one by ray start --head, or write another address into RAY_ADDRESS."
        ) from error
    return address


def _not_joined(where: str, text: str) -> str:
    if "Version mismatch" in text:
        told = " ".join(text.split())
        return (
            f"this environment is not that of {where}: {told[:300].rstrip('.')}. Install the same Ray and "
            "Python on both sides: python locks/install.py ray."
        )
    if "Could not find any running Ray" in text:
        return (
            "no Ray cluster runs on this host: start one by ray start --head, name one by "
            "RAY_ADDRESS=HOST:PORT, or write cluster=ray-local."
        )
    if "no authentication token was found" in text:
        return (
            f"{where} could not be joined: RAY_AUTH_MODE=token is set, and this host has no token. Copy "
            "~/.ray/auth_token from the cluster's head."
        )
    told = " ".join(text.split())[:300].rstrip(".") or "it did not answer"
    return (
        f"{where} could not be joined: {told}. Run the command on one of its hosts. If it asks for a token, "
        "set RAY_AUTH_MODE=token, and have its ~/.ray/auth_token on this host."
    )


@contextmanager
def _quiet() -> Iterator[int]:
    """Nothing is on stderr meanwhile: Ray's C++ says there each second what its exception says in the end.
    Gives the descriptor of what stderr is otherwise."""
    said = os.dup(STDERR)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDERR)
    try:
        yield said
    finally:
        os.dup2(said, STDERR)
        os.close(nowhere)
        os.close(said)


def _give_up(where: str, said: int) -> None:
    """End a command that waits inside of Ray, which no exception reaches."""
    sentence = f"error: {where} did not answer within {CONNECT_S:g} s: is it Ray that listens there?\n"
    os.write(said, sentence.encode())
    os._exit(2)
