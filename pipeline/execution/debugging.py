"""Call a point once in this process and verify it, so that its author can use breakpoint() and print."""

from __future__ import annotations

import bdb
import os
import traceback

from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.reaper import INTERPRETERS
from kernel_pipeline.records.credentials import withdraw
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point


def prepare(device: Device) -> None:
    """Let this process run providers on the device. Call it before a kernel's module is imported."""
    withdraw()
    if device.kind == "cuda":
        assert device.uuid is not None, "a GPU has one"
        os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid
    else:
        os.environ |= {"CUDA_VISIBLE_DEVICES": ""} | INTERPRETERS


def call(where: str, point: Point, device: Device, seed: int) -> Outcome:
    """Call a point of the kernel that ``where`` names once, over memory that held NaN, and verify it.

    Nothing is timed: the status of a right output is ``verified``. The traceback of an exception is printed.

    Raises bdb.BdbQuit when the author leaves the debugger.
    """
    from kernel_pipeline.execution import faults

    try:
        return _called(where, point, device, seed)
    except bdb.BdbQuit:
        raise
    except Exception as error:  # whatever an author's function raises
        traceback.print_exc()
        failed = faults.failed(error)
        return Outcome(status=failed.status, error=failed.error)


def _called(where: str, point: Point, device: Device, seed: int) -> Outcome:
    import torch

    from kernel_pipeline import verification
    from kernel_pipeline.execution import instance
    from kernel_pipeline.execution.editions import expected_of, tolerances_of
    from kernel_pipeline.loading import as_tuple

    on = torch.device(device.kind)
    loaded = instance.standalone(where, point).loaded
    provider = loaded.kernel.provider(point.provider)
    found = instance.standalone(where, point, interpreted=device.kind == "cpu" and provider.interpreted)
    inputs, copies = (loaded.inputs(found.problem, on, seed) for _ in range(2))
    declared = loaded.outputs(found.problem)
    tolerances = tolerances_of(loaded, found.problem, declared)
    before = tuple(x.clone() for x in inputs)
    expected = expected_of(loaded, found.problem, copies, before, declared, tolerances)
    taken = found.taken(inputs)
    with verification.poisoned_memory():
        outputs = as_tuple(found.call(*taken))
    returned = loaded.returned(found.problem, outputs)
    if fault := verification.fault(outputs, returned, (*inputs, *taken), loaded.kernel.in_place):
        return Outcome(status="incorrect", error=fault)
    verdict = verification.compare_all(loaded.placed(found.problem, outputs), expected)
    return Outcome(
        status="incorrect" if verdict.error else "verified",
        error=verdict.error,
        max_abs_err=verdict.max_abs_err,
        max_rel_err=verdict.max_rel_err,
    )
