"""Whose generated code is asked for, and what all rows of a point share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import Loaded
from kernels.contract import Provider
from pipeline.execution.identity import Identity
from pipeline.machine.device import Device
from pipeline.points.point import Point
from pipeline.store.evidence import joined
from pipeline.toolchain.resources import BuildReport

LAUNCHED = ("triton", "gluon", "numba")
"""The languages whose functions are compiled as a call launches them: by Triton's compiler and by Numba."""


def has_code(provider: Provider) -> bool:
    """Whether there is code of a provider to show: it is written here in Triton, Gluon, Numba or CUDA, or
    compiled by Inductor."""
    return provider.compiled or (provider.is_own and provider.language in (*LAUNCHED, "cuda"))


@dataclass(frozen=True)
class Scope:
    """Whose code is asked for: a kernel's on a device, for architectures, of CUDA only the functions whose
    name holds ``function``; and where its texts lie, ``folder`` below ``artifacts``. ``shows`` that the texts
    themselves are asked for, and not only the rows; ``offline`` that nothing is called on the device, so that
    what only a call tells is left out. ``built`` is the report of an earlier build on this machine, by which
    a CUDA library is known that is not here."""

    loaded: Loaded
    identity: Identity
    device: Device
    architectures: tuple[str, ...]
    function: str | None
    artifacts: Path
    wait_s: float | None
    shows: bool
    offline: bool = False
    built: BuildReport | None = None

    @property
    def folder(self) -> Path:
        """Of this kernel's texts on this machine."""
        return self.artifacts / "codegen" / self.loaded.name / self.device.slug

    @property
    def native(self) -> str | None:
        """The architecture of this machine's GPU."""
        capability = self.identity.environment.compute_capability
        return capability and capability.replace(".", "")

    def provider(self, point: Point) -> Provider:
        """The provider of a point."""
        return self.loaded.kernel.provider(point.provider)

    def see_alone(self) -> None:
        """Let this process see no GPU but the one that was chosen."""
        if self.device.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.device.uuid

    def common(self, point: Point, architecture: str | None, compiler: str, basis: str) -> dict[str, Any]:
        """The fields that rows of a point share."""
        return {
            **joined(point, self.identity.key(point)),
            "language": self.provider(point).language,
            "architecture": architecture,
            "native": architecture is not None and architecture == self.native,
            "compiler": compiler,
            "environment": self.identity.environment.digest,
            "basis": basis,
        }
