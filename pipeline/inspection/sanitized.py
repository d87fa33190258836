"""The process that compute-sanitizer watches: one call of each point.

Started by ``python -m pipeline.sanitize`` as ``compute-sanitizer … python -m pipeline.inspection.sanitized
PLAN FAILURES``. The plan is JSON: where the kernel is, the seed, and points.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from pipeline.execution import instance
from pipeline.points import tracebacks
from pipeline.points.notation import file_name
from pipeline.points.point import Point


def main(plan: Path, failures: Path) -> None:
    """Call the plan's points; what fails is written by point, and the others go on."""
    wanted = json.loads(plan.read_text())
    failed: dict[str, str] = {}
    for one in wanted["points"]:
        point = Point.model_validate(one)
        try:
            _call(wanted["where"], point, wanted["seed"])
        except Exception as error:  # whatever a provider raises is its own fate
            failed[file_name(point)] = " ".join(tracebacks.named(error).split())[:500]
            failures.write_text(json.dumps(failed))
    failures.write_text(json.dumps(failed))


def _call(where: str, point: Point, seed: int) -> None:
    found = instance.standalone(where, point)
    # Made by the host, so that no kernel but the provider's is checked.
    inputs = [x.to("cuda") for x in found.inputs(torch.device("cpu"), seed)]
    found.call(*inputs)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
