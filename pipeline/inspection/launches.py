"""Find the kernel launches of a call on a GPU. The profiler sees them, a provider may report them, and
``joined`` maps them to the functions of a CUDA library."""

from __future__ import annotations

import bisect
import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from kernel_pipeline.records.base import Record
from kernel_pipeline.records.measurement import Launch
from kernel_pipeline.records.point import Point

from .library import CudaFunction, known_name

RANGE = "point:"
"""The prefix of the name of a range around a point's calls. The point's key follows."""


class DeviceLaunch(Record):
    """A kernel launch that the device ran: demangled name, threads per block, blocks, registers per thread,
    bytes of shared memory per block (static and dynamic), and microseconds."""

    name: str
    threads: int
    blocks: int
    registers: int
    shared: int
    duration_us: float


def parse(trace: Mapping[str, Any]) -> dict[str, list[DeviceLaunch]]:
    """Return the launches within each range ``point:KEY`` of a Chrome trace, by key, in the host's order.

    A kernel's event has the correlation id of the host's runtime call that launched it. The launch belongs to
    the range that encloses this call on the same thread.
    """
    events = spans(trace)
    ranges: dict[Any, list[tuple[float, float, str]]] = {}
    for event in calls_of(trace, ("user_annotation", "cpu_op")):
        begin = float(event["ts"])
        key = str(event["name"]).removeprefix(RANGE)
        ranges.setdefault(event["tid"], []).append((begin, begin + float(event["dur"]), key))
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


def calls_of(
    trace: Mapping[str, Any], categories: Sequence[str] = ("user_annotation",)
) -> list[Mapping[str, Any]]:
    """Return the ranges around the recorded calls, in order. A range inside another range on the same thread
    comes from the provider, so it is left out even if its name begins with ``point:``.
    """
    ranges = [event for event in spans(trace, categories) if str(event["name"]).startswith(RANGE)]
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for event in sorted(ranges, key=callers_first):
        before = found.setdefault(event["tid"], [])
        if not before or float(event["ts"]) >= float(before[-1]["ts"]) + float(before[-1]["dur"]):
            before.append(event)
    every = (event for of_thread in found.values() for event in of_thread)
    return sorted(every, key=lambda event: float(event["ts"]))


def spans(trace: Mapping[str, Any], categories: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """Return the events of a Chrome trace that have a duration, of some categories or of all."""
    timed = (event for event in trace["traceEvents"] if event.get("ph") == "X")
    return [event for event in timed if not categories or event.get("cat") in categories]


def callers_first(event: Mapping[str, Any]) -> tuple[float, float]:
    """Return the key that sorts events by begin, and a caller before the events inside it."""
    return float(event["ts"]), -float(event["dur"])


def holds(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
    """Return whether the event ``outer`` encloses the event ``inner``."""
    return float(outer["ts"]) <= float(inner["ts"]) and end(inner) <= end(outer)


def end(event: Mapping[str, Any]) -> float:
    """Return the end of an event, in the trace's microseconds."""
    return float(event["ts"]) + float(event["dur"])


def trace_of(profiler: Any) -> dict[str, Any]:
    """Return the Chrome trace of what a profiler recorded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        made: dict[str, Any] = json.loads(whole(path.read_bytes()))
        return made


def whole(trace: bytes) -> str:
    """Repair a trace that torch wrote, so that it is valid JSON. torch does not escape quotes and control
    characters in names and arguments. Arguments that are not valid JSON are removed."""
    text = trace.decode(errors="replace")
    text = re.sub(r'^( *"name": )"(.*)"(,?)$', _named, text, flags=re.MULTILINE)
    text = re.sub(r'("name": )"(.*)"(, "pid": \d+, "tid": \d+)', _named, text)
    return re.sub(r'("args": \{\n)(.*)(\n *\})', _of_arguments, text)


def _named(line: re.Match[str]) -> str:
    quoted = f'"{line[2]}"'
    return f"{line[1]}{quoted if _is_json(quoted) else json.dumps(line[2])}{line[3]}"


def _of_arguments(lines: re.Match[str]) -> str:
    return f"{lines[1]}{lines[2] if _is_json('{' + lines[2] + '}') else ''}{lines[3]}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


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
    """Call each point of the kernel ``where`` once on the current GPU, and return the launches that the
    profiler sees, by the point's key. A point that fails is left out."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from kernel_pipeline.execution import instance

    called = set()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for key, point in points:
            try:
                found = instance.standalone(where, point)
                inputs = found.inputs(torch.device("cuda"), seed)
                torch.cuda.synchronize()
                with record_function(RANGE + key):
                    found.call(*inputs)
                    torch.cuda.synchronize()
                called.add(key)
            except Exception:  # the sweep reports whatever a provider raises
                continue
    seen = parse(trace_of(profiler))
    return {key: launches for key, launches in seen.items() if key in called}


@dataclass(frozen=True)
class Launched:
    """One kernel launch of a call.

    ``function`` is None if the library has no such function. ``threads`` is the block size, ``dynamic`` the
    dynamic shared memory in bytes, ``strategy`` the provider's name for its choice."""

    function: CudaFunction | None
    name: str
    threads: int
    dynamic: int
    strategy: str | None = None


def reported(where: str, points: Iterable[tuple[str, Point]], seed: int) -> dict[str, tuple[Launch, ...]]:
    """Call each point of the kernel ``where`` once on the current GPU, and return the launches that its
    provider reports, by the point's key. A point that fails or reports nothing is left out."""
    import torch

    from kernel_pipeline.execution import instance
    from kernel_pipeline.execution.launch_recorder import recorded

    found: dict[str, tuple[Launch, ...]] = {}
    for key, point in points:
        with suppress(RuntimeError, ValueError):
            made = instance.standalone(where, point)
            inputs = made.inputs(torch.device("cuda"), seed)
            with recorded(made) as report:
                made.call(*inputs)
                torch.cuda.synchronize()
            if launched := report():
                found[key] = launched
    return found


def joined(
    reported: Sequence[Launch], seen: Sequence[DeviceLaunch], functions: Sequence[CudaFunction]
) -> list[Launched]:
    """Join the launches of one call with a library's functions for one architecture.

    ``reported`` comes from the provider, ``seen`` from the profiler. The n-th launch of a template in
    ``reported`` is the n-th launch of this template in ``seen``. Without a report, ``seen`` alone is used.
    """
    by_name = {one.name: one for one in functions}
    names = [known_name(one.name) for one in seen]
    if not reported:
        functions_seen = map(by_name.get, names)
        return [
            Launched(function, one.name, one.threads, _dynamic(one.shared, function))
            for function, one in zip(functions_seen, seen, strict=True)
        ]
    found = []
    left = list(names)
    for launch in reported:
        template = known_name(launch.function).partition("<")[0]
        name = next((name for name in left if name.partition("<")[0] == template), None)
        if name is not None:
            left.remove(name)
        candidates = [one for one in functions if one.template == template]
        only = candidates[0] if len(candidates) == 1 else None
        function = by_name.get(name or "", only)
        found.append(
            Launched(
                function, name or launch.function, prod(launch.block), launch.shared_bytes, launch.strategy
            )
        )
    return found


def _dynamic(shared: int, function: CudaFunction | None) -> int:
    """Return a launch's dynamic shared memory: all of it less the function's static part."""
    return 0 if function is None else max(0, shared - function.analysis.resources.shared)
