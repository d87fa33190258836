"""The process that ncu or compute-sanitizer watches: it calls each point of a plan once.

``ncu … python -m pipeline.inspection.watched_process PLAN FAILURES``. The plan is JSON: the tool (``ncu`` or
``sanitizer``), the seed, and points, each with its kernel and a name. Errors are written as JSON by name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from kernel_pipeline.records.point import Point
from pipeline.execution import instance
from pipeline.inspection.launches import RANGE
from pipeline.points import tracebacks


def main(plan: Path, failures: Path) -> None:
    """Call the plan's points. A point that fails leaves the others."""
    wanted = json.loads(plan.read_text())
    call = under_ncu if wanted["tool"] == "ncu" else under_sanitizer
    failed: dict[str, str] = {}
    for one in wanted["points"]:
        try:
            call(one["where"], one["name"], Point.from_dict(one["point"]), wanted["seed"])
        except Exception as error:  # a provider may raise anything
            failed[one["name"]] = " ".join(tracebacks.named(error).split())[:500]
            failures.write_text(json.dumps(failed))
    failures.write_text(json.dumps(failed))


def under_ncu(where: str, key: str, point: Point, seed: int) -> None:
    """Call a point once in an NVTX range named by its key, and once before, so that it is compiled."""
    nvtx: Any = torch.cuda.nvtx
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    # Before its first pass over a kernel ncu saves all device memory of this process, with the cached memory
    # of earlier points. Free that now and not right before the call: the device clears it in the background.
    torch.cuda.empty_cache()
    found = instance.standalone(where, point)
    inputs = found.inputs(torch.device("cuda"), seed)
    found.call(*inputs)
    torch.cuda.synchronize()
    runtime.cudaProfilerStart()
    try:
        nvtx.range_push(RANGE + key)
        found.call(*inputs)
        torch.cuda.synchronize()
        nvtx.range_pop()
    finally:
        runtime.cudaProfilerStop()


def under_sanitizer(where: str, name: str, point: Point, seed: int) -> None:
    """Call a point once. The host makes its inputs, so that only the provider's kernels are checked."""
    found = instance.standalone(where, point)
    inputs = [x.to("cuda") for x in found.inputs(torch.device("cpu"), seed)]
    found.call(*inputs)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
