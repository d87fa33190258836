"""Ray, as far as it is known here: how a cluster is joined, which hosts it has, how an actor is asked."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import ROOT, UserError

SOURCES = ("conf", "kernel_pipeline", "kernels", "pipeline")
"""The folders of the working tree that go along to every host."""

ANSWERS_S = 10.0
"""How long an address may take to accept a connection."""

AT_ONCE = 16
"""Processes that a cluster which is started here starts at the same time: more than a host has GPUs."""


class LostError(UserError):
    """An actor is gone, with its process or its host."""


@dataclass(frozen=True)
class Node:
    """A host of the cluster, by Ray's id, its name and its number here, from 1."""

    id: str
    name: str
    number: int
    gpus: int


def nodes() -> list[Node]:
    """The hosts of the cluster that are alive, always in the same order."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    alive.sort(key=lambda node: (node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"]))
    return [
        Node(node["NodeID"], node["NodeManagerHostname"], number, int(node["Resources"].get("GPU", 0)))
        for number, node in enumerate(alive, start=1)
    ]


def start(actor: type, node: Node, kind: str) -> Any:
    """Start an actor on a host, on the next of its GPUs that is free; nothing is waited for."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node.id, soft=False)
    gpus = 1 if kind == "cuda" else 0
    return ray.remote(actor).options(num_cpus=0, num_gpus=gpus, scheduling_strategy=there).remote()


def answer(asked: Any) -> Any:
    """What an actor answers, however long that takes. Raises LostError when it is gone, and UserError as it
    does itself."""
    import ray

    try:
        return ray.get(asked)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from error
        raise LostError(f"it raised {error.cause!r}") from error
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise LostError(" ".join(str(error).split())[:300]) from error


def end(actor: Any) -> None:
    """End an actor at once, with all that it has started."""
    import ray

    with suppress(Exception):  # it is gone, or the cluster is
        ray.kill(actor)


@contextmanager
def joined(engine: str, kind: str) -> Iterator[str]:
    """Join the cluster that RAY_ADDRESS or Ray's own file names, or one that is started here and ends again,
    and give its name. Its hosts get the sources as they are now. Raises UserError."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "cluster= needs Ray, which is not installed: run "
            "python locks/install.py ray, by the Python of this command."
        )
    variables = dict(os.environ)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    import ray

    is_here = engine == "ray-local"
    address = "local" if is_here else _address()
    where = "the cluster that cluster=ray-local started here" if is_here else f"the Ray cluster at {address}"
    with ExitStack() as stack:
        # Ray points breakpoint() at its own debugger, and child processes inherit that.
        stack.callback(os.environ.update, variables)
        stack.callback(os.environ.clear)
        tree = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernel-pipeline-tree-"))
        for name in SOURCES:
            shutil.copytree(ROOT / name, Path(tree, name), ignore=shutil.ignore_patterns("__pycache__"))
        options: dict[str, Any] = {}
        if is_here:
            # The path of a socket has 107 bytes at most, and Ray's own part of it takes most of them.
            folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
            options["_temp_dir"] = stack.enter_context(folder)
            options |= {"include_dashboard": False, "num_gpus": None if kind == "cuda" else 0}
            # Actors ask for no processor. Ray would start a process for each that it may use, ahead and
            # without the sources, so that none could be an actor; and it would start actors one by one.
            options |= {"num_cpus": 0, "_system_config": {"worker_maximum_startup_concurrency": AT_ONCE}}
        try:
            ray.init(
                address,
                runtime_env={"working_dir": tree},
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **options,
            )
        except (ray.exceptions.RayError, RuntimeError, OSError, ValueError) as error:
            raise UserError(_not_joined(where, " ".join(str(error).split()))) from error
        stack.callback(ray.shutdown)
        yield where


def _address() -> str:
    """The cluster's address, after a look whether anybody is there. Raises UserError."""
    address = os.environ.get("RAY_ADDRESS", "").strip() or "auto"
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ANSWERS_S).close()
        except (OSError, OverflowError, ValueError) as error:
            raise UserError(
                f"no Ray cluster answers at RAY_ADDRESS={address} ({error}): write HOST:PORT, as "
                "ray start --head prints it."
            ) from error
    return address


def _not_joined(where: str, reason: str) -> str:
    if "Could not find any running Ray" in reason:
        return (
            "no Ray cluster runs on this host: start one by ray start --head, name one by "
            "RAY_ADDRESS=HOST:PORT, or write cluster=ray-local."
        )
    return (
        f"{where} could not be joined: {reason[:300].rstrip('.')}. Run the command on one of its hosts, by "
        "the same Ray and Python. If it asks for a token, set RAY_AUTH_MODE=token, and have its "
        "~/.ray/auth_token on this host."
    )
