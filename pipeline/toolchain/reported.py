"""What the report of an earlier build knows of a build now: which libraries would come out the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.machine.torch import installed_torch
from pipeline.store import results
from pipeline.toolchain import extension
from pipeline.toolchain.extension import Made, Place
from pipeline.toolchain.resources import BuildReport


def report_at(path: Path) -> BuildReport | None:
    """The report that is there; None where there is none. Raises UserError for one that can't be read."""
    return results.read(BuildReport, path) if path.is_file() else None


def is_of_today(
    place: Place, sources: Sequence[str], known: BuildReport, architectures: Sequence[str] | None
) -> bool:
    """Whether a report says what a build of these sources would say now. One with remarks may not: what was
    left out may be there now. Raises what ``extension.build`` raises before it compiles anything."""
    if known.remarks or not sources or set(known.made_of) != set(sources):
        return False
    return known.torch == installed_torch().version and all(
        made_today(place, source, known, architectures) is not None for source in sources
    )


def made_today(
    place: Place, source: str, known: BuildReport, architectures: Sequence[str] | None = None
) -> Made | None:
    """What the library of a source is made of, if a build now would make it of what the report names; else
    None. Raises what ``extension.build`` raises before it compiles anything."""
    made = known.made_of.get(source)
    if made is None or not extension.would_be_made_of(place, source, made, architectures):
        return None
    return made
