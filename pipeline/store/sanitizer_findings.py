"""Findings of compute-sanitizer in a kernel's providers: rows of text files, by kernel and GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from kernel_pipeline.records.base import Record, Values
from kernel_pipeline.records.credentials import MaskedText


class SanitizerRow(Record):
    """The result of one tool for one provider, or in ``reason`` why it could not be checked.

    ``problems`` are those that it ran, with ``points`` configurations in all. ``errors`` and ``warnings`` are
    the tool's own counts, ``findings`` a line for each kind of them. ``version`` is compute-sanitizer's.
    ``commit`` is that of the kernel's repository, and ``dirty`` says that it had edits.
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
    """Return the path of compute-sanitizer's findings for one kernel on one GPU."""
    return folder / "sanitizer" / kernel / f"{gpu}.jsonl"
