"""The provider that a worker measures, and the state between two requests about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..loading import Tensors
from ..timing.timers import Rotation, Samples, capture
from .instance import Instance
from .protocol import Shared


def no_outputs(*inputs: Any) -> Tensors:
    """Return nothing: the empty call of a provider that overwrites its inputs."""
    del inputs
    return ()


@dataclass
class Armed:
    """The sets of an audit: the provider's call on each set and the places of the outputs.

    On a GPU outputs are not copied to their places in a try: ``ring`` holds the graphs that write them, and
    ``outputs`` the outputs. On a CPU an empty replay calls ``idle``, which returns outputs.
    """

    rotation: Rotation
    shared: Shared
    places: list[Tensors]
    idle: Callable[..., Any] = no_outputs
    ring: capture.Ring | None = None
    outputs: list[Tensors | None] = field(default_factory=list)
    given: tuple[Tensors, ...] = ()
    """The sets in shared memory, in the kernel's form."""


@dataclass
class Running:
    """The provider that is being measured, and the state that the steps so far have left."""

    found: Instance
    inputs: Tensors
    """Never passed to the provider's entry, which gets other tensors over the same memory."""
    shared: Shared
    bytes: int
    taken: Tensors = ()
    """The inputs as the entry takes them: with prepared weights."""
    samples: Samples | None = None
    armed: Armed | None = None

    @property
    def in_place(self) -> bool:
        """Whether a call overwrites its inputs."""
        return self.found.loaded.kernel.in_place
