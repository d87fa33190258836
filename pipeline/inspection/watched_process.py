"""Call each point of a plan once, in a process under ncu or compute-sanitizer.

``ncu ... python -m pipeline.inspection.watched_process PLAN FAILURES``. PLAN is a JSON file with the tool
(``ncu`` or ``sanitizer``), the seed, and the points, each with its kernel and a name. Errors are written to
FAILURES as JSON, by the point's name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from kernel_pipeline import tracebacks
from kernel_pipeline.execution import instance
from kernel_pipeline.records.point import Point

from .launches import RANGE


def main(plan: Path, failures: Path) -> None:
    """Call the plan's points. If a point fails, the others are still called."""
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
    """Call a point once to compile it, and once in an NVTX range that is named after its key."""
    nvtx: Any = torch.cuda.nvtx
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    # Before its first pass over a kernel, ncu saves all device memory of this process, including cached
    # memory of earlier points. Free the cache here, not right before the call, because the device clears the
    # memory in the background.
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
    """Call a point once. The inputs are made on the host, so only the provider's kernels are checked."""
    found = instance.standalone(where, point)
    inputs = [x.to("cuda") for x in found.inputs(torch.device("cpu"), seed)]
    found.call(*inputs)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
