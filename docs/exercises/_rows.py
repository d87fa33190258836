"""Rows of the repository's results, which the exercises about profiles read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pipeline import ROOT


def rows(kind: str) -> Iterator[dict[str, Any]]:
    """Yield all rows without an error of ``results/KIND``, by kernel and GPU."""
    for path in sorted((ROOT / "results" / kind).glob("*/*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if row["status"] == "ok":
                yield row
