"""Which provider a problem is given to, and in which configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels import Loaded
from kernels.contract import Gpu, Value


@dataclass(frozen=True)
class Choice:
    """A provider in a configuration.

    ``how`` is ``exact``, ``generalised``, ``default`` or ``torch``; ``reason`` a sentence that says why it is
    not exact, or empty.
    """

    provider: str
    parameters: Mapping[str, Value]
    how: str
    reason: str


def choose(loaded: Loaded, problem: object, gpu: Gpu | None, slug: str | None) -> Choice:
    """The kernel's baseline, which every machine has."""
    del problem, gpu, slug
    return Choice(loaded.kernel.baseline, {}, "default", "nothing is tuned.")
