"""Versions of the code that times and verifies: ``versions.yaml`` lists them.

    python -m pipeline.keys.versions
    python -m pipeline.keys.versions list "an A/B of both trees on an H100: 0.1 % apart at 40 points"
    python -m pipeline.keys.versions replace "this version's first code"

Prints today's digests of that code and the version of each. ``list`` adds each way's digest to the last
version that concerns it. ``replace`` writes the digests of the file's last version anew.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from msgspec import Meta

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.fields import Text

from . import closure

FILE = Path(__file__).with_suffix(".yaml")

ROOT = loading.LIBRARY.parent
"""The folder that holds the library."""

MEASURING = (
    ("kernel_pipeline/execution/provider_runner.py", "ProviderRunner"),
    ("kernel_pipeline/execution/verifier.py", "Verifier"),
    ("kernel_pipeline/execution/point_audit.py", "PointAudit"),
    ("kernel_pipeline/execution/plausibility.py", "judged"),
    ("kernel_pipeline/execution/supervisor.py", "Supervisor"),
)
"""The definitions that time and verify. A digest covers all that they reach."""

NOT_MEASURING = (
    *("kernel_pipeline.execution.protocol", "kernel_pipeline.execution.message_connection"),
    "kernel_pipeline.execution.launch_recorder",
    *("kernel_pipeline.execution.child_process", "kernel_pipeline.execution.process_state"),
    *("kernel_pipeline.execution.workers", "kernel_pipeline.execution.extra_readings"),
    *("kernel_pipeline.execution.fork_server", "kernel_pipeline.timing.rates"),
    *("kernel_pipeline.machine", "kernel_pipeline.toolchain", "kernel_pipeline.records"),
    *("kernel_pipeline.contract", "kernel_pipeline.declared", "kernel_pipeline.loading"),
    "kernel_pipeline.provider",
    "kernel_pipeline.problems",
    *("kernel_pipeline.tracebacks", "kernel_pipeline.compiled", "kernel_pipeline.ops"),
    *("kernel_pipeline.tensors", "kernel_pipeline.threads", "kernel_pipeline.numba_launch"),
    *("kernel_pipeline.errors", "kernel_pipeline.files", "kernel_pipeline.json_lines"),
)
"""Modules that no digest covers: once a call and its inputs exist, records, planning, building and messages
change no time."""

TIMERS = {
    "cpu": ("cpu",),
    "graph": ("graph", "capture", "event", "events"),
    "event": ("event", "events"),
    "do_bench": ("do_bench",),
    "wall": ("wall",),
}
"""The modules of timers that each way of timing runs. A graph that can't be captured falls back to events."""

EDITED = "edited"
"""The word before the digest of code that no version lists."""


class Listed(Record):
    """The digests of code that counts as a version, one for each way of timing that the version concerns.

    ``evidence`` says why the code counts as that version.
    """

    evidence: Text
    cpu: Text | None = None
    graph: Text | None = None
    event: Text | None = None
    do_bench: Text | None = None
    wall: Text | None = None


class Version(Record):
    """A version of the code that times and verifies. Rows of two versions are not comparable."""

    number: Annotated[int, Meta(ge=0)]
    date: date
    change: Text
    digests: tuple[Listed, ...]


def measurement(kind: str, timer: str) -> str:
    """Return how rows name the current measuring code, for a kind of device and a timer of the settings.

    It is the version's number or, if no version lists the code, ``edited`` and its digest.
    """
    way = "cpu" if kind == "cpu" else "graph" if timer == "auto" else timer
    found = digest(way)
    number = next(
        (one.number for one in known() if any(getattr(of, way) == found for of in one.digests)), None
    )
    return f"{EDITED} {found}" if number is None else str(number)


def measuring(way: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the definitions that measure by a way of timing, and the modules that its digest leaves out."""
    others = {name for names in TIMERS.values() for name in names} - set(TIMERS[way])
    stop = (*NOT_MEASURING, *(f"kernel_pipeline.timing.timers.{name}" for name in sorted(others)))
    return MEASURING, stop


@cache
def digest(way: str) -> str:
    """Return the digest of today's measuring code for one timer."""
    entries, stop = measuring(way)
    roots = {"kernel_pipeline": ROOT / "kernel_pipeline"}
    return closure.closure([(ROOT / file, name) for file, name in entries], roots, stop).digest


@cache
def known() -> tuple[Version, ...]:
    """Return the versions that the file lists, the latest last."""
    return tuple(Version.from_dict(one) for one in yaml.safe_load(FILE.read_text()))


def listing(evidence: str, ways: Iterable[str] = TIMERS) -> str:
    """Return today's digests for ways of timing in the format of the file."""
    lines = yaml.safe_dump(
        [{"evidence": evidence} | {way: digest(way) for way in ways}], sort_keys=False, width=110
    )
    return "".join(f"  {line}\n" for line in lines.splitlines())


def is_edited(way: str) -> bool:
    """Whether no version lists today's digest for a way of timing."""
    return not any(getattr(of, way) == digest(way) for one in known() for of in one.digests)


def latest(way: str) -> int:
    """Return the place in the file of the last version that concerns a way of timing."""
    return max(place for place, one in enumerate(known()) if any(getattr(of, way) for of in one.digests))


def add(evidence: str, replace: bool = False) -> None:
    """Write each way's digest that is not listed under the last version that concerns the way; with
    ``replace`` write those of the file's last version, instead of its digests."""
    comment, *versions = re.split("^(?=- number:)", FILE.read_text(), flags=re.MULTILINE)
    for place, version in enumerate(versions):
        is_last = place == len(versions) - 1
        wanted = [way for way in TIMERS if (replace and is_last) or (not replace and is_edited(way))]
        if ways := [way for way in wanted if latest(way) == place]:
            before, heading, digests = version.partition("  digests:\n")
            versions[place] = f"{before}{heading}{'' if replace else digests}{listing(evidence, ways)}"
    FILE.write_text(comment + "".join(versions))


def main(words: list[str]) -> None:
    """Print today's digests, or list them. Raises UserError for arguments other than the module's."""
    match words:
        case []:
            print(listing("write here how you know that this code measures the same times").rstrip())
        case ["list" | "replace" as how, evidence] if evidence.strip():
            add(evidence, replace=how == "replace")
            known.cache_clear()
        case _:
            raise UserError('write no argument, or list "EVIDENCE", or replace "EVIDENCE".')
    for way in TIMERS:
        print(f"{way}: {measurement('cpu' if way == 'cpu' else 'cuda', way)}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly, as after ``| head``
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
