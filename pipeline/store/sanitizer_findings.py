"""What compute-sanitizer found in a kernel's providers: rows of text files, by kernel and GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from kernel_pipeline.records.base import Record, Values
from kernel_pipeline.records.credentials import MaskedText


class SanitizerRow(Record):
    """One provider under one tool, or in ``reason`` why it could not be checked.

    ``problems`` are what it was given, at ``points`` configurations in all. ``errors`` and ``warnings`` are
    the tool's own counts, ``findings`` a line for each kind of them. ``version`` is compute-sanitizer's, and
    ``commit`` that of the kernel's repository, ``dirty`` if it had edits.
    """

    kernel: str
    provider: str
    tool: str
    status: Literal["clean", "found", "failed"]
    problems: tuple[Values, ...]
    points: int
    errors: int
    warnings: int
    findings: tuple[MaskedText, ...] = ()
    reason: MaskedText | None = None
    version: str
    environment: str
    commit: str
    dirty: bool


def sanitizer_path(folder: Path, kernel: str, gpu: str) -> Path:
    """What compute-sanitizer found of one kernel on one GPU."""
    return folder / "sanitizer" / kernel / f"{gpu}.jsonl"
