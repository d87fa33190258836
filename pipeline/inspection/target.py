"""The target of ``profile``, ``counters`` and ``sanitize``: some points of one kernel on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings

from .. import ROOT
from ..keys.identity import Identity
from ..points import choice
from ..points.catalog import Entry
from ..points.plan import Pins, Target, chosen_providers, plan
from ..store import results


class KernelTarget:
    """One kernel on one device. ``output`` is the folder for its rows. A CPU's rows go to ``local/`` instead
    of the repository's own folders."""

    def __init__(
        self, entry: Entry, chosen: device.Device, settings: TimingSettings, seed: int, output: Path
    ) -> None:
        self.entry = entry
        self.kernel = entry.loaded.kernel
        self.device = chosen
        self.slug = chosen.slug
        self.environment = fingerprint(chosen)
        self.identity = Identity(entry.loaded, self.environment, settings, seed)
        self.output = results.folder_for(output, chosen.kind)

    @property
    def title(self) -> str:
        """The name for people: ``softmax on nvidia-h200``."""
        return f"{self.entry.name} on {self.slug}"

    def points(
        self, preset: str, pins: Pins, providers: Sequence[str] | None, kind: str, which: slice = choice.EVERY
    ) -> tuple[list[Point], list[str]]:
        """Return the points at a few problems, of the providers that devices of ``kind`` can time, and a
        sentence about each group of providers without points. Raises the UserErrors of ``plan``."""
        if self.device.kind == "cpu" and which == choice.EVERY:
            # A large problem takes seconds on a CPU and shows nothing more.
            which = slice(2)
        target = Target(self.device.kind, device.capabilities(self.device))
        planned = plan(self.entry, preset, target, pins, providers)
        wanted = choice.few_problems(self.entry, preset, pins, providers, which)

        def is_meant(name: str) -> bool:
            return kind in self.kernel.provider(name).devices

        points = choice.at(planned, wanted, is_meant)
        refused = dict(reversed(planned.refused))
        needed = {"cpu": "needs a GPU", "cuda": "runs on a CPU only"}
        without: dict[str, list[str]] = {}
        for name in [one.name for one in chosen_providers(self.entry, providers)]:
            if not any(point.provider == name for point in points):
                reason = refused.get(name, "no configuration fits")
                without.setdefault(reason if is_meant(name) else needed[kind], []).append(name)
        return points, [f"Left out: {', '.join(names)} ({why})." for why, names in without.items()]

    def timed(self, warn: Callable[[str], None]) -> dict[Point, Measurement]:
        """Return the rows timed with the same settings, from the ledger of ``output`` or else of this
        repository."""
        repository = results.folder_for(ROOT / "results", self.device.kind)
        folders = list(dict.fromkeys([self.output, repository]))
        return results.timed(folders, self.entry.name, self.slug, self.identity.settings_digest, warn)
