"""A Ray cluster of several nodes on this host, each with temporary files, and so with locks, of its own."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Hosts:
    """A context manager: the cluster ends with it."""

    def __init__(self, folder: Path, nodes: int) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        self.cluster = Cluster()
        self.nodes: list[Any] = [self.add() for _ in range(nodes)]

    def add(self, **options: Any) -> Any:
        """One more node."""
        place = self._folder / f"node{len(self.cluster.list_all_nodes())}-{time.monotonic_ns()}"
        place.mkdir(parents=True)
        given = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False} | options
        variables = {"TMPDIR": str(place), "XDG_CACHE_HOME": str(self._folder / "cache")}
        return self.cluster.add_node(env_vars=variables, object_store_memory=80 << 20, **given)

    @property
    def variables(self) -> dict[str, str]:
        """What a command needs to find it."""
        return {"RAY_ADDRESS": str(self.cluster.address)}

    def lose(self, node: Any) -> None:
        """The node's processes are killed."""
        self.cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        """All nodes are ended."""
        self.cluster.shutdown()


def actors() -> list[int]:
    """The processes of all actors that are alive on this host."""
    return _processes(lambda command: command.startswith(b"ray::DeviceActor"))


def idle() -> list[int]:
    """Ray's processes on this host that run nothing yet."""
    return _processes(lambda command: command.startswith(b"ray::IDLE"))


def of_ray() -> list[int]:
    """The daemons of all Ray clusters on this host."""
    return _processes(lambda command: b"raylet/raylet" in command or b"gcs/gcs_server" in command)


def _processes(is_one: Callable[[bytes], bool]) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if is_one((process / "cmdline").read_bytes()):
                found.append(int(process.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def kill_one() -> None:
    """End an actor as the kernel does that runs out of memory."""
    os.kill(actors()[0], signal.SIGKILL)


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for what will be."""
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < seconds, "it did not come"
        time.sleep(0.05)
