"""What a result depends on and the commit does not hold, and how much of it is in a provider's key."""

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
"""The packages that decide what Numba makes of a kernel; those of them that are installed count."""


class Environment(Record):
    """What a result depends on and the commit does not hold. No time, host name or UUID, so that the
    same machine gives the same fingerprint on every run.

    ``flags`` are the environment variables that are in keys (``variables.py``). ``host`` is a CPU's own: a
    model's name says little of a CPU's speed. ``image`` and ``base_image`` name a container's image and what
    that was built from, each with its digest. They are unkeyed, no part of the identity: an image that was
    built again is another one, and what a result depends on in it, the other fields say. So is ``l2_bytes``,
    the size of a GPU's L2 cache, which its name says already."""

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

    @property
    def digest(self) -> str:
        """All of it but what is unkeyed."""
        return digest(self.to_dict(exclude=UNKEYED))

    @property
    def of_device(self) -> str:
        """What a device's own limits depend on: another host with the same GPU, driver and packages has the
        same."""
        return digest([self._of_every_provider(), self._flags("all")])

    def keyed_for(self, provider: Provider) -> dict[str, Any]:
        """What of it is in a provider's key: its language's tools and variables; on a GPU not the host."""
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
    """The versions of the packages that are installed."""
    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


UNKEYED = {"image", "base_image", "l2_bytes"}
"""The fields of an environment that a result does not depend on."""
