"""Two machines side by side by what they left: their ledgers, and the finals that both had.

Nothing was measured together, so that there is no verdict and no interval.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.fields import NAME
from kernel_pipeline.records.point import Point
from pipeline.reporting import gpus
from pipeline.reporting.frames import frame, frame_of_finals
from pipeline.reporting.headlines import comparable
from pipeline.reporting.shares import with_shares
from pipeline.store import finals, results

NO_VERDICT = "They were not measured together: no verdict."


@dataclass(frozen=True)
class Machines:
    """Two machines that left results in any of the folders, the first of which counts."""

    a: str
    b: str
    folders: Sequence[Path]
    warn: Callable[[str], None]

    @cached_property
    def kernels(self) -> list[str]:
        """Those that both have timings or finals of."""
        return sorted(kernels_of(self.a, self.folders) & kernels_of(self.b, self.folders))

    def show(self, console: Console, kernel: str, as_markdown: bool, wanted: Callable[[Point], bool]) -> bool:
        """Print a kernel on both, at the points that are ``wanted``; False where they have no problem in
        common."""
        some, others = self._compared(kernel, wanted)

        def say(text: str) -> None:
            console.print(text, highlight=False, soft_wrap=True, markup=False)

        if some:
            heading = f"{kernel}: a is {self.a}, b is {self.b}"
            table = gpus.table(some, heading)
            if as_markdown:
                say(f"**{heading}**\n\n{table.markdown()}")
            else:
                table.print(console)
            for group in gpus.groups(some):
                say(gpus.sentence(group))
        for line in gpus.left_out(others, {slug: slug for slug in (self.a, self.b)}):
            say(line)
        if some:
            say(NO_VERDICT)
        return bool(some or others)

    def _compared(
        self, kernel: str, wanted: Callable[[Point], bool]
    ) -> tuple[list[gpus.CommonProblem], list[gpus.OtherSources]]:
        rows, held = [], []
        for slug in (self.a, self.b):
            paths = [results.ledger_path(place, kernel, slug) for place in _places(slug, self.folders)]
            path = next((path for path in paths if path.is_file()), None)
            rows += [] if path is None else results.own_rows(path, self.warn)
            held += [row for row in self._finals(kernel, slug) if wanted(row.point) and row.power == "burst"]
        chosen = comparable(row for row in rows if wanted(row.point))
        swept = frame(with_shares(chosen, self._ceilings))
        of_finals = frame_of_finals(with_shares(held, self._ceilings))
        return gpus.compared(swept, of_finals, (self.a, self.b))

    @cached_property
    def _ceilings(self) -> dict[str, Ceilings]:
        """The machines' ceilings: of a machine that several folders have, the first folder's."""
        found: dict[str, Ceilings] = {}
        for folder in reversed(self.folders):
            found |= results.machines(folder, self.warn)[1]
        return found

    def _finals(self, kernel: str, slug: str) -> list[finals.Final]:
        for place in _places(slug, self.folders):
            if held := finals.newest(finals.read(finals.path(place, kernel, slug), self.warn)):
                return list(held)
        return []


def found(
    a: str | None, b: str | None, folders: Sequence[Path], warn: Callable[[str], None]
) -> Machines | None:
    """The machines that two texts name; None if neither is one. Raises UserError if only one is."""
    known = [bool(text and kernels_of(text, folders)) for text in (a, b)]
    if not any(known):
        return None
    if not all(known):
        (name, machine), (other, none) = (("a", a), ("b", b)) if known[0] else (("b", b), ("a", a))
        others = ", ".join(sorted(slugs(folders) - {machine})) or "no other did"
        what = f"{other} is missing" if none is None else f"{other}={none} is none that left results"
        raise UserError(f"{name}={machine} is a machine, and {what}; those that did beside it: {others}.")
    if a == b:
        raise UserError(f"a and b are both {a}: write two machines.")
    return Machines(str(a), str(b), folders, warn)


def slugs(folders: Sequence[Path]) -> set[str]:
    """The machines that left timings or finals in any of the folders."""
    return {
        path.stem
        for folder in folders
        for place in results.folders_of(folder)
        for kind in ("timings", "finals")
        for path in place.glob(f"{kind}/*/*.jsonl")
    }


def kernels_of(slug: str, folders: Sequence[Path]) -> set[str]:
    """The kernels of which a machine has timings or finals; none of what is no machine."""
    if not re.fullmatch(NAME, slug):
        return set()
    return {
        path.parent.name
        for place in _places(slug, folders)
        for kind in ("timings", "finals")
        for path in place.glob(f"{kind}/*/{slug}.jsonl")
    }


def _places(slug: str, folders: Sequence[Path]) -> list[Path]:
    """Where a machine's results lie: a CPU's are not in the repository's own."""
    kind = "cpu" if slug.startswith("cpu-") else "cuda"
    return [results.folder_for(folder, kind) for folder in folders]
