"""Everything that calls Ray: join a cluster, list its hosts, start and ask actors."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kernel_pipeline.errors import UserError

from .. import ROOT

SOURCES = ("conf", "kernel_pipeline", "kernels", "pipeline")
"""The folders of the working tree that every host gets."""

ANSWERS_S = 10.0
"""The seconds that an address may take to accept a connection."""


class LostError(UserError):
    """An actor, its process or its host is gone."""


class Node(NamedTuple):
    """A host of the cluster: Ray's id, its name and its number, from 1."""

    id: str
    name: str
    number: int


def places(kind: str) -> list[Node]:
    """Return the host of each device of a kind, in a fixed order. A host without a GPU counts as one CPU."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    alive.sort(key=lambda node: (node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"]))
    found: list[Node] = []
    for number, node in enumerate(alive, start=1):
        gpus = int(node["Resources"].get("GPU", 0))
        devices = gpus if kind == "cuda" else int(gpus == 0)
        found += [Node(node["NodeID"], node["NodeManagerHostname"], number)] * devices
    return found


def start(actor: type, node: Node, kind: str, *arguments: Any) -> Any:
    """Start an actor on a host, on its next free GPU, without waiting."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node.id, soft=False)
    options = {"num_cpus": 0, "num_gpus": int(kind == "cuda"), "scheduling_strategy": there}
    return ray.remote(actor).options(**options).remote(*arguments)


def answer(asked: Any) -> Any:
    """Wait for an actor's answer. Raises LostError when the actor is gone, and UserError if the actor raises
    it."""
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
    """Kill an actor; its child processes end with it."""
    import ray

    with suppress(Exception):  # it or the cluster is gone
        ray.kill(actor)


def _this_hosts() -> str:
    """Return the address of the cluster that this host started or joined last; it may have ended. Raises
    ConnectionError if there is none."""
    from ray._private import services  # Ray has no public function for it

    return str(services.get_ray_address_from_environment("auto", None))


@contextmanager
def joined(engine: str, kind: str) -> Iterator[str]:
    """Join the cluster of RAY_ADDRESS or of this host, or start one for as long as the context lasts, and
    yield its name. Its hosts get today's sources. Raises UserError."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "cluster= needs Ray, which is not installed: run python locks/install.py ray with the "
            "Python of this command."
        )
    variables = dict(os.environ)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    with ExitStack() as stack:
        # Ray points breakpoint() at its own debugger, and child processes inherit that.
        stack.callback(os.environ.update, variables)
        stack.callback(os.environ.clear)
        tree = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernel-pipeline-tree-"))
        # A project has no packages of ours: they are installed on its hosts.
        for name in (one for one in SOURCES if (ROOT / one).is_dir()):
            shutil.copytree(ROOT / name, Path(tree, name), ignore=shutil.ignore_patterns("__pycache__"))
        options: dict[str, Any] = {"runtime_env": {"working_dir": tree}, "log_to_driver": False}
        if engine == "ray-local":
            address, where = "local", "the cluster that cluster=ray-local started here"
            # A socket's path has at most 107 bytes, and Ray's part takes most of them.
            folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
            options["_temp_dir"] = stack.enter_context(folder)
            options |= {"include_dashboard": False, "num_gpus": None if kind == "cuda" else 0}
            options["num_cpus"] = 0  # otherwise Ray starts a process for each core, and no actor can use it
        else:
            address = os.environ.get("RAY_ADDRESS", "").strip() or "auto"
            where = f"the Ray cluster at {address}"
        try:
            if address != "local":  # Ray itself waits for minutes where nothing answers
                known = _this_hosts() if address == "auto" else address
                host, port = known.split(":")
                socket.create_connection((host, int(port)), ANSWERS_S).close()
            ray.init(address, logging_level=logging.CRITICAL, **options)
        except (ray.exceptions.RayError, RuntimeError, OSError, OverflowError, ValueError) as error:
            reason = " ".join(str(error).split())[:300].rstrip(".")
            raise UserError(
                f"{where} could not be joined: {reason}. Start one by ray start --head, name one by "
                "RAY_ADDRESS=HOST:PORT, or write cluster=ray-local. This host needs the cluster's versions "
                "of Ray and Python, and for a cluster with a token RAY_AUTH_MODE=token and its "
                "~/.ray/auth_token."
            ) from error
        stack.callback(ray.shutdown)
        yield where
