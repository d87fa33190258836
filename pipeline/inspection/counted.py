"""The process that ncu watches: one call of each point, in an NVTX range that names the point's key.

Started by the stage ``counters`` as ``ncu … python -m pipeline.inspection.counted PLAN FAILURES``. The plan
is JSON: the seed, points with their keys, each with where its kernel is, and the file that takes the times.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from pipeline.execution import instance
from pipeline.inspection.launches import RANGE
from pipeline.points import author
from pipeline.points.point import Point


def main(plan: Path, failures: Path) -> None:
    """Run the plan's points; what fails is written by key, and the others go on. When each began, when it was
    ready to be counted and when it was through is written by key, too, by the host's monotonic clock."""
    wanted = json.loads(plan.read_text())
    failed: dict[str, str] = {}
    times: dict[str, list[float]] = {}
    for one in wanted["points"]:
        marks = times.setdefault(one["key"], [monotonic()])
        try:
            _count(one["where"], one["key"], Point.model_validate(one["point"]), wanted["seed"], marks)
        except Exception as error:  # whatever a provider raises is its own row's fate
            failed[one["key"]] = " ".join(author.named(error).split())[:500]
            failures.write_text(json.dumps(failed))
        marks.append(monotonic())
        Path(wanted["times"]).write_text(json.dumps(times))
    failures.write_text(json.dumps(failed))


def _count(where: str, key: str, point: Point, seed: int, marks: list[float]) -> None:
    nvtx: Any = torch.cuda.nvtx
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    # Before its first pass over a kernel ncu saves all of the device's memory that this process holds: also
    # what earlier points had, which torch keeps for later ones. It is given back now, and not right before
    # what is counted: the device clears it in the background.
    torch.cuda.empty_cache()
    found = instance.standalone(where, point)
    inputs = found.inputs(torch.device("cuda"), seed)
    found.call(*inputs)  # compiles and loads, unseen
    torch.cuda.synchronize()
    marks.append(monotonic())
    runtime.cudaProfilerStart()
    try:
        nvtx.range_push(RANGE + key)
        found.call(*inputs)
        torch.cuda.synchronize()
        nvtx.range_pop()
    finally:
        runtime.cudaProfilerStop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
