"""The textbook sweep that ``pipeline.benchmarks sweep`` compares with: compile, verify, ``do_bench``, next.

    python -m pipeline.execution.textbook PLAN

The plan is a JSON file with the kernel's address, the provider and the points, each a problem and parameters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from kernel_pipeline.contract import Tolerance
from kernel_pipeline.loading import Tensors, as_tuple
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline.execution import instance
from pipeline.execution.instance import Instance

SEED = 0


def sweep(plan: Mapping[str, Any], device: torch.device, bench: Callable[[Callable[[], Any]], float]) -> None:
    """Measure the points of a plan by ``bench``, which returns a call's milliseconds.

    Prints each point with its time, and at the end the seconds that all took. Raises AssertionError for a
    wrong output.
    """
    begin = perf_counter()
    problem: Values | None = None
    for one in plan["points"]:
        point = Point.from_dict({"kernel": Path(plan["where"]).name, "provider": plan["provider"], **one})
        found = instance.standalone(plan["where"], point)
        if point.problem != problem:
            problem = point.problem
            inputs = found.inputs(device, SEED)
            expected = found.loaded.expected(found.problem, inputs)
        verify(found, inputs, expected)
        print(point, bench(partial(found.call, *inputs)), flush=True)
    print(f"{len(plan['points'])} points measured in {perf_counter() - begin:.1f} s")


def verify(found: Instance, inputs: Tensors, expected: Tensors) -> None:
    """Raise AssertionError if a call's outputs are further from the reference than the kernel's tolerance."""
    allowed = found.loaded.kernel.tolerance(found.problem)
    tolerances = (allowed,) * len(expected) if isinstance(allowed, Tolerance) else allowed
    outputs = as_tuple(found.call(*inputs))
    for out, right, tolerance in zip(outputs, expected, tolerances, strict=True):
        torch.testing.assert_close(
            out.to(right.dtype), right, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True
        )


if __name__ == "__main__":
    from triton.testing import do_bench

    sweep(json.loads(Path(sys.argv[1]).read_text()), torch.device("cuda"), do_bench)
