"""The environment that results depend on besides the commit, and the part of it in a provider's key."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from typing import Any, Literal

from msgspec import field

from ..contract import Provider
from . import variables
from .base import Record, digest
from .fields import Count, Name, Text

NUMBA = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")
"""The packages that determine the code that Numba generates; installed packages are in the key."""


class Environment(Record):
    """Everything that a result depends on besides the commit. It contains no time, host name or UUID, so that
    the same machine has the same environment in every run.

    ``flags`` are the environment variables in keys (``variables.py``). ``host`` identifies the host on a CPU,
    whose speed does not follow from the model's name. ``image`` and ``base_image`` name the container's image
    and the image that it was built from, with their digests. Neither is part of the digest, because a rebuilt
    image has another name, and the other fields cover everything that results depend on. The digest also
    leaves out a GPU's properties that follow from its name: the size of its L2 cache (``l2_bytes``), the
    number of its multiprocessors, and the shared memory in bytes that a block may use.
    """

    gpu: Name
    name: Text
    kind: Literal["cpu", "cuda"]
    compute_capability: Text | None
    memory_mib: Count
    driver: Text | None
    cuda: Text | None
    torch: Text
    triton: Text
    python: Text
    nvcc: Text | None
    cxx: Text | None
    cpu: Text
    cpu_threads: Count
    platform: Text
    host: Text | None = None
    flags: dict[Text, Text] = field(default_factory=dict)
    image: Text | None = None
    base_image: Text | None = None
    l2_bytes: Count | None = None
    multiprocessors: Count | None = None
    shared_memory: Count | None = None

    @property
    def digest(self) -> str:
        """The digest of all fields except ``UNKEYED``."""
        return digest(self.to_dict(exclude=UNKEYED))

    @property
    def of_device(self) -> str:
        """The digest of everything that a device's ceilings depend on. Hosts with the same GPU, driver and
        packages have the same digest."""
        return digest([self._of_every_provider(), self._flags("all")])

    def keyed_for(self, provider: Provider) -> dict[str, Any]:
        """Return the part of the environment that is in a provider's key, with the tools and variables of the
        provider's language. On a GPU it leaves out the host.
        """
        found = self._of_every_provider()
        flags = found.pop("flags", {}) | self._flags("all")
        if provider.language in ("triton", "gluon") or provider.compiled or provider.package:
            found["triton"] = self.triton
            flags |= self._flags("triton")
        if provider.compiled:
            flags |= self._flags("inductor")
        if provider.language == "cuda":
            found["nvcc"] = self.nvcc
            flags |= self._flags("cuda")
        if provider.language == "cpp" or (provider.compiled and self.kind == "cpu"):
            found["cxx"] = self.cxx
        if provider.language == "numba":
            found["numba"] = _versions(NUMBA)
            flags |= self._flags("numba")
        if provider.package:
            with suppress(metadata.PackageNotFoundError):
                found["package"] = f"{provider.package} {metadata.version(provider.package)}"
        return {**found, "flags": flags}

    def _of_every_provider(self) -> dict[str, Any]:
        names = ["gpu", "compute_capability", "driver", "cuda", "torch"]
        if self.kind == "cpu":
            names += ["python", "cpu", "cpu_threads", "platform", "host"]
        found = {name: getattr(self, name) for name in names}
        return {**found, "flags": self._flags("cpu")} if self.kind == "cpu" else found

    def _flags(self, who: str) -> dict[str, str]:
        return {name: value for name, value in self.flags.items() if variables.whose(name) == who}


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed packages among these."""
    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


UNKEYED = {"image", "base_image", "l2_bytes", "multiprocessors", "shared_memory"}
"""The fields of an environment that a result does not depend on."""
