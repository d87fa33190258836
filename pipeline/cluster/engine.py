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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_pipeline.errors import UserError
from pipeline import ROOT

SOURCES = ("conf", "kernel_pipeline", "kernels", "pipeline")
"""The folders of the working tree that every host gets."""

ANSWERS_S = 10.0
"""How long an address may take to accept a connection."""


class LostError(UserError):
    """An actor, its process or its host is gone."""


@dataclass(frozen=True)
class Node:
    """A host of the cluster: Ray's id, its name and its number, from 1."""

    id: str
    name: str
    number: int
    gpus: int


def nodes() -> list[Node]:
    """The living hosts of the cluster, always in the same order."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    alive.sort(key=lambda node: (node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"]))
    return [
        Node(node["NodeID"], node["NodeManagerHostname"], number, int(node["Resources"].get("GPU", 0)))
        for number, node in enumerate(alive, start=1)
    ]


def start(actor: type, node: Node, kind: str, *arguments: Any) -> Any:
    """Start an actor on a host, on its next free GPU, without waiting."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node.id, soft=False)
    gpus = 1 if kind == "cuda" else 0
    return ray.remote(actor).options(num_cpus=0, num_gpus=gpus, scheduling_strategy=there).remote(*arguments)


def answer(asked: Any) -> Any:
    """Wait for an actor's answer. Raises LostError when the actor is gone, and UserError where it does."""
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


@contextmanager
def joined(engine: str, kind: str) -> Iterator[str]:
    """Join the cluster of RAY_ADDRESS or of this host, or start one for as long as the context lasts; gives
    its name. Its hosts get today's sources. Raises UserError."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "cluster= needs Ray, which is not installed: run "
            "python locks/install.py ray, by the Python of this command."
        )
    variables = dict(os.environ)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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
            # A socket's path has at most 107 bytes, and Ray's part takes most of them.
            folder = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
            options["_temp_dir"] = stack.enter_context(folder)
            options |= {"include_dashboard": False, "num_gpus": None if kind == "cuda" else 0}
            options["num_cpus"] = 0  # or Ray starts an idle process a core, which no actor can use
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
    """The cluster's address. Raises UserError where nothing answers, and for Ray Client's ``ray://``."""
    address = os.environ.get("RAY_ADDRESS", "").strip() or "auto"
    if address != "auto":
        try:
            host, port = address.split(":")
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
        "the same Ray and Python. If the cluster asks for a token, set RAY_AUTH_MODE=token, and copy its "
        "~/.ray/auth_token to this host."
    )
