"""Which device kernels a call launches, read from the trace that torch.profiler writes."""

from __future__ import annotations

import bisect
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.points.frozen import Record
from pipeline.points.point import Point

RANGE = "point:"
"""What the range around a point's calls is named with, before the point's key."""


class DeviceLaunch(Record):
    """One kernel as the device ran it: its demangled name, threads a block, blocks, registers a thread, bytes
    of shared memory a block (static and dynamic), microseconds."""

    name: str
    threads: int
    blocks: int
    registers: int
    shared: int
    duration_us: float


def parse(trace: Mapping[str, Any]) -> dict[str, list[DeviceLaunch]]:
    """The launches made within each range ``point:KEY`` of a Chrome trace, by key, in the order in which the
    host made them.

    A kernel's event carries the correlation number of the host's call that launched it; the range is the one
    that this call lies in, on the same thread.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    ranges: dict[Any, list[tuple[float, float, str]]] = {}
    for event in events:
        if event.get("cat") in ("user_annotation", "cpu_op") and str(event["name"]).startswith(RANGE):
            begin = float(event["ts"])
            key = str(event["name"]).removeprefix(RANGE)
            ranges.setdefault(event["tid"], []).append((begin, begin + float(event["dur"]), key))
    for spans in ranges.values():
        spans.sort()
    calls = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {}):
            inside = _enclosing(ranges.get(event["tid"], []), float(event["ts"]))
            if inside is not None:
                calls[event["args"]["correlation"]] = (float(event["ts"]), inside)
    found: dict[str, list[tuple[float, DeviceLaunch]]] = {}
    for event in events:
        if event.get("cat") == "kernel" and (call := calls.get(event["args"].get("correlation"))):
            found.setdefault(call[1], []).append((call[0], _launch(event)))
    return {key: [one for _, one in sorted(made, key=lambda x: x[0])] for key, made in found.items()}


def _enclosing(spans: Sequence[tuple[float, float, str]], at: float) -> str | None:
    place = bisect.bisect_right(spans, at, key=lambda span: span[0]) - 1
    return spans[place][2] if place >= 0 and at <= spans[place][1] else None


def _launch(event: Mapping[str, Any]) -> DeviceLaunch:
    arguments = event["args"]
    threads, blocks = 1, 1
    for extent in arguments.get("block", ()):
        threads *= int(extent)
    for extent in arguments.get("grid", ()):
        blocks *= int(extent)
    return DeviceLaunch(
        name=str(event["name"]),
        threads=threads,
        blocks=blocks,
        registers=int(arguments.get("registers per thread", 0)),
        shared=int(arguments.get("shared memory", 0)),
        duration_us=float(event["dur"]),
    )


def observe(where: str, points: Iterable[tuple[str, Point]], seed: int) -> dict[str, list[DeviceLaunch]]:
    """What one call of each point of the kernel that ``where`` names launches on the current GPU, by the key
    that comes with the point. A point that fails launches nothing."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from pipeline.execution import instance

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for key, point in points:
            try:
                found = instance.standalone(where, point)
                inputs = found.inputs(torch.device("cuda"), seed)
                torch.cuda.synchronize()
                with record_function(RANGE + key):
                    found.call(*inputs)
                    torch.cuda.synchronize()
            except Exception:  # whatever a provider raises is for the sweep to tell
                continue
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return parse(json.loads(path.read_text()))
